"""The steps that put the bookies with new copies into a ledger's metadata."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final

from bk_spark.protocol.errors import (
    MetadataConflictError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    SessionLostError,
)
from bk_spark.protocol.replication.actions import LedgerFound, MembersReplaced, ReadLedger, ReplaceMembers
from bk_spark.protocol.replication.fragments import Fragment, with_members

#: Compare-and-sets of one fragment. Each after the first means that another client changed the ledger.
_ATTEMPTS: Final = 8


def replacement(
    created_zxid: int, latest: LedgerFound | None, fragment: Fragment, members: Mapping[int, str]
) -> Generator[Any, Any, LedgerFound | None]:
    """Put the new members into the metadata. Return the ledger as it is then. None: another client changed the segment.

    ``latest`` is what was read or written last. If the ledger has changed since, it is read again. None: it is read
    first. ``created_zxid`` is the znode's creation, since an id can be used again.
    """
    for _ in range(_ATTEMPTS):
        now: LedgerFound = latest or (yield ReadLedger())
        latest = None
        changed = with_members(now.metadata, fragment, dict(members))
        if now.created_zxid != created_zxid or changed is None:
            return None
        try:
            replaced: MembersReplaced = yield ReplaceMembers(changed, now.version)
        except NoSuchLedgerError:
            # There may be another ledger with this id.
            return None
        except SessionLostError:
            raise
        except (MetadataConflictError, OutcomeUnknownError):
            continue
        return LedgerFound(changed, replaced.version, created_zxid)
    return None
