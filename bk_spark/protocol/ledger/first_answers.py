"""The bookies whose first answer a writer awaits before it acknowledges entries.

Whoever may write to bookies may have used the ledger's id with another password. Such a bookie refuses the ledger's
entries, and gives readers others. An ack quorum may hold an entry before that bookie refuses it. Rules:

* A bookie that took an entry has taken the password. It is never awaited again.
* Nothing is acknowledged while a bookie owes entries and has never taken one. If it refuses the password, the writer
  ends. So nobody was told that an entry is safe for which readers may ask this bookie.
* That lasts :data:`~bk_spark.protocol.ledger.claiming.PATIENCE_MS` at most, from the moment when an ack quorum holds an
  entry. So a bookie that hangs costs this once in a ledger. Readers cannot tell what a silent bookie may hold from the
  ledger's entries, unless the digest has a key.
* A bookie that has failed is not awaited. Nor is one that was sent nothing: readers ask it for none of the entries.
* Nobody is awaited where bookies were told the password before: by a claim
  (:mod:`bk_spark.protocol.ledger.claiming`), or by the fences of a recovery.
"""

from __future__ import annotations

from collections.abc import Sequence

from bk_spark.protocol.ledger.claiming import PATIENCE_MS, ChooseLast
from bk_spark.protocol.ledger.writer_actions import WriterTimer
from bk_spark.protocol.machine import StartTimer, StopTimer


class FirstAnswers:
    """The first answers of one ledger's bookies.

    Part of :class:`bk_spark.protocol.ledger.writer_ensemble.WriterEnsemble`.
    """

    def __init__(self, *, password_is_known: bool) -> None:
        #: Whether as many bookies as a recovery needs have taken the ledger's password.
        self.password_is_known = password_is_known
        #: Bookies that have taken an entry, and those that were silent for too long.
        self._heard: tuple[str, ...] = ()
        #: The bookies for which the timer runs.
        self._awaited: tuple[str, ...] = ()

    def on_held(self, bookie_id: str, entries: int) -> None:
        """Record that the bookie has taken so many entries."""
        if entries and bookie_id not in self._heard:
            self._heard += (bookie_id,)

    def missing(self, members: Sequence[str], owed: Sequence[int]) -> list[str]:
        """List the ``members`` to wait for. ``owed`` is the number of entries that each was sent and has not taken."""
        if self.password_is_known:
            return []
        return [name for name, entries in zip(members, owed, strict=True) if entries and name not in self._heard]

    def keep_time(self, missing: Sequence[str]) -> list[StartTimer | StopTimer]:
        """Start or stop the timer: an ack quorum holds entries, which wait only for ``missing``."""
        ran = bool(self._awaited)
        self._awaited = tuple(bookie_id for bookie_id in self._awaited if bookie_id in missing)
        if missing and not self._awaited:
            self._awaited = tuple(missing)
            return [StartTimer(WriterTimer.FIRST_ANSWERS, PATIENCE_MS)]
        return [StopTimer(WriterTimer.FIRST_ANSWERS)] if ran and not missing else []

    def on_timer(self) -> list[ChooseLast]:
        """Go on without those that have not answered in time."""
        silent, self._awaited = self._awaited, ()
        self._heard += silent
        return [ChooseLast(bookie_id) for bookie_id in silent]
