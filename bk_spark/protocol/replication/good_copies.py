"""Copies that a repair has found good, and how long that counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bk_spark.protocol.replication.fragments import Fragment
from bk_spark.protocol.replication.ledger_check import Copy, copy_of


class GoodCopies:
    """Copies of closed fragments that need no second check in one repair.

    A copy counts as good as long as the ledger is the same one and its bookie has kept its registration. A bookie that
    comes back has another registration, and may have another disk.
    """

    def __init__(self) -> None:
        self.copies: set[Copy] = set()
        self._created_zxid = -1
        #: The registrations of the last round, by bookie.
        self._registrations: Mapping[str, int] = {}

    def begin_round(self, created_zxid: int, registrations: Mapping[str, int]) -> None:
        """Forget the copies of another ledger, and those of bookies that registered again or are gone."""
        before, self._registrations = self._registrations, registrations
        if created_zxid != self._created_zxid:
            self._created_zxid = created_zxid
            self.copies.clear()
        same = {bookie_id for bookie_id, zxid in registrations.items() if before.get(bookie_id) == zxid}
        self.copies = {copy for copy in self.copies if copy[-1] in same}

    def add(self, fragment: Fragment, positions: Collection[int]) -> None:
        """Note what a check has found good. Only a closed fragment stays as it is."""
        if fragment.closed:
            self.copies.update(copy_of(fragment, position) for position in positions)

    def clear(self) -> None:
        """Forget all copies, because time has passed in which they may have become bad."""
        self.copies.clear()
