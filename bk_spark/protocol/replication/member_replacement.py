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
from bk_spark.protocol.replication.actions import LedgerFound, ReadLedger, ReplaceMembers
from bk_spark.protocol.replication.fragments import Fragment, with_members

#: Compare-and-sets of one fragment. Each after the first means that another client changed the ledger.
_ATTEMPTS: Final = 8


def replacement(stored: LedgerFound, fragment: Fragment, members: Mapping[int, str]) -> Generator[Any, Any, bool]:
    """Put the new members into the metadata. False: another client changed the segment."""
    if all(fragment.ensemble[position] == bookie_id for position, bookie_id in members.items()):
        return True
    for _ in range(_ATTEMPTS):
        # An id can be used again, and an earlier fragment was replaced since the check.
        now: LedgerFound = yield ReadLedger()
        changed = with_members(now.metadata, fragment, dict(members))
        if now.created_zxid != stored.created_zxid or changed is None:
            return False
        try:
            yield ReplaceMembers(changed, now.version)
        except NoSuchLedgerError:
            # There may be another ledger with this id.
            return False
        except SessionLostError:
            raise
        except (MetadataConflictError, OutcomeUnknownError):
            continue
        return True
    return False
