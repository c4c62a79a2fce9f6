"""What it means that no replica returned an entry.

It depends on their answers:

========================================== ==========================================================
entries known to exist                     *unknown*: that a replica lacks the entry proves nothing
unconfirmed, all replicas said "absent"    *absent*: not there now (a live writer may yet add it)
unconfirmed, one replica could not tell    *unknown*: it may be there
========================================== ==========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import AWAY_REMEDY, EntryUnknownError, NoSuchEntryError
from bk_spark.protocol.quorum import Answer

_LOST_REMEDY: Final = "it was written there. If their disks or directories were replaced, bring back the old ones"


def no_replica(
    failed: Mapping[str, tuple[Answer, str]], ledger_id: int, entry_id: int, *, unconfirmed: bool
) -> NoSuchEntryError | EntryUnknownError:
    """Return the error for an entry.

    Parameters
    ----------
    failed
        What each replica answered, and in words.
    ledger_id, entry_id
        Which entry it is.
    unconfirmed
        The entry may not exist.
    """
    said = "; ".join(f"{bookie} {reason}" for bookie, (_, reason) in failed.items())
    absent = all(answer is Answer.ABSENT for answer, _ in failed.values())
    code = Code.NO_ENTRY.name if absent else None
    if absent and unconfirmed:
        return NoSuchEntryError(
            f"the entry is not there now: {said}", ledger_id=ledger_id, entry_id=entry_id, code=code
        )
    remedy = _LOST_REMEDY if absent else AWAY_REMEDY
    return EntryUnknownError(
        f"no replica returned the entry: {said}; {remedy}", ledger_id=ledger_id, entry_id=entry_id, code=code
    )
