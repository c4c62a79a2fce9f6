"""Finds the state in which a commit left a log. No I/O of its own: it asks for pages.

A state is final once no commit can come before its end. An offset or a transaction names one commit. A time names the
last commit up to it, so a time is refused while another commit may still get it or an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bk_spark.log.formats.page import SegmentPage
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS
from bk_spark.log.formats.znodes import Head
from bk_spark.log.history.commits import Commit, end_of_state, is_before, is_meant, newest_first
from bk_spark.log.positions.texts import AsOf, Time, Transaction
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError


@dataclass(frozen=True, slots=True)
class State:
    """A log held the offsets ``[first_offset, end_offset)`` after the commit at ``time_ms``."""

    first_offset: int
    end_offset: int
    time_ms: int


class LogStates:
    """The states of a log up to ``head``.

    ``page`` returns a page by its number, ``page_of`` the number of the page with an offset, and ``page_at`` the last
    page whose first segment was committed at a time or before.
    """

    def __init__(
        self,
        name: str,
        head: Head,
        page: Callable[[int], SegmentPage],
        page_of: Callable[[int], int],
        page_at: Callable[[int], int],
    ) -> None:
        self._name = name
        self._head = head
        self._page = page
        self._page_of = page_of
        self._page_at = page_at

    def commits(self) -> Iterator[Commit]:
        """Yield the commits, the newest first."""
        return newest_first(self._pages_back(self._head.tail_page), self._head.list_offset)

    def of(self, as_of: AsOf, now_ms: Callable[[], int]) -> State:
        """Return the state after a commit. Raises LogRangeGoneError if a part of it is gone, InvalidArgumentError if
        there is no such commit, or the state at that time may still change."""
        if isinstance(as_of, Time):
            self._check_settled(as_of, now_ms)
        elif isinstance(as_of, int):
            self._check_committed(as_of)
        found = self._find(as_of)
        if found is None:
            raise self._no_commit(as_of)
        first, kept, end = found.first_offset, self._head.list_offset, end_of_state(found, as_of)
        if first is None:
            # A release that did not record commits did not keep anything before the log's first offset either.
            first = 0
        if first < kept:
            raise LogRangeGoneError(
                f"log {self._name}: as of {as_of} it held offsets [{first}, {end}), of which [{first}, "
                f"{min(kept, end)}) are gone: they left the log since, by overwrite, truncation or retention, and its "
                f"policy no longer keeps them; give a later commit ({self._remedy})"
            )
        return State(first, end, found.time_ms)

    def first_offset_at(self, time_ms: int) -> int | None:
        """Return where the log began at a time. None if its list does not say so."""
        found = self._find(Time(time_ms))
        return None if found is None else found.first_offset

    def _find(self, as_of: AsOf) -> Commit | None:
        number = self._head.tail_page
        if isinstance(as_of, Time):
            # Commits without segments may begin the next page.
            number = min(number, self._page_at(as_of.time_ms) + 1)
        elif isinstance(as_of, int):
            number = self._page_of(as_of)
            while number < self._head.tail_page and _goes_on(self._page(number)):
                number += 1
        for commit in newest_first(self._pages_back(number), self._head.list_offset):
            if is_meant(commit, as_of):
                return commit
            if is_before(commit, as_of):
                return None
        return None

    def _pages_back(self, number: int) -> Iterator[SegmentPage]:
        for page in range(number, self._head.first_page - 1, -1):
            yield self._page(page)

    def _check_settled(self, time: Time, now_ms: Callable[[], int]) -> None:
        """Raise InvalidArgumentError unless every commit up to ``time`` is in the list."""
        # Times of commits never decrease.
        if time.time_ms < max(self._head.last_commit_time_ms, self._head.last_change_time_ms):
            return
        now = now_ms()
        if time.time_ms > now:
            raise InvalidArgumentError(
                f"log {self._name}: {time} is in the future, it is {Time(now)} by ZooKeeper's clock: give an earlier "
                "time, or read the present state"
            )
        if time.time_ms > now - COMMIT_TIME_LAG_MS:
            raise InvalidArgumentError(
                f"log {self._name}: {time} is less than {COMMIT_TIME_LAG_MS // 60_000} minutes ago, so commits with an "
                "earlier time may still come: give an offset, a transaction or an earlier time, or wait"
            )

    def _check_committed(self, offset: int) -> None:
        if offset >= self._head.next_offset:
            raise InvalidArgumentError(
                f"log {self._name}: there is no commit with offset {offset} yet, what is sealed ends at "
                f"{self._head.next_offset}"
            )
        if offset < self._head.list_offset:
            raise LogRangeGoneError(
                f"log {self._name}: the commit with offset {offset} is gone, the first offset that is kept is "
                f"{self._head.list_offset}; give a later commit ({self._remedy})"
            )

    def _no_commit(self, as_of: AsOf) -> Exception:
        if isinstance(as_of, Transaction):
            what = f"there is no commit of version {as_of.version} by application {as_of.app!r}"
            why = ": it is not committed, or it had no rows"
        else:
            what, why = f"there is no commit at {as_of} or before", ""
        kept = self._head.list_offset
        if kept:
            return LogRangeGoneError(
                f"log {self._name}: {what}{why or ':'}{' or' if why else ''} it is gone, what is kept begins at offset "
                f"{kept} ({self._remedy})"
            )
        return InvalidArgumentError(f"log {self._name}: {what}{why} ({self._remedy})")

    @property
    def _remedy(self) -> str:
        return (
            f"bkctl log history {self._name} lists the commits, bkctl log retention {self._name} --history sets how "
            "long earlier states are kept"
        )


def _goes_on(page: SegmentPage) -> bool:
    commits = page.commits
    return commits is not None and len(commits) > 0 and bool(commits.is_continued[-1])
