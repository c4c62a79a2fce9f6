"""Moves full pages out of ZooKeeper into an index ledger. Each page leaves one line in a directory.

A move writes its own ledger, registered under ``ledgers/+index/<id of the move>``: the pages unchanged, and a
directory. Once the ledger is closed, one transaction makes the head refer to it and deletes the pages' znodes. A move
that fails earlier leaves an unreferenced registered ledger, which the reaper deletes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from bk_spark.log.core.append import read_head
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.index import MAX_LINES, Line, PageIndex, directory_steps, encode_directory, line_of
from bk_spark.log.core.parts import in_parts
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings
from bk_spark.log.core.reading import head_steps, read_steps
from bk_spark.log.core.registrations import MakeZnodes, registrar
from bk_spark.log.core.steps import Conflict, Created, Failed, LedgerRegistrar, Steps, WriteLedger
from bk_spark.log.formats.names import INDEX, LogPaths
from bk_spark.log.formats.page import decode_page
from bk_spark.log.formats.znodes import Head, IndexPosition, decode_registration
from bk_spark.protocol.errors import MetadataConflictError, MetadataFormatError
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp

#: Full pages kept in ZooKeeper before a move begins: 2 MiB.
MAX_ZNODE_PAGES: Final = 64
#: The newest full pages stay, because most readers need these.
KEEP_PAGES: Final = 16
#: Limit for one move, because of its memory (16 MiB) and its transaction.
MAX_MOVED_PAGES: Final = 512
_READ_PAGES: Final = 64


@dataclass(frozen=True, slots=True)
class MoveReport:
    """``pages`` were moved into ``ledger_id``.

    If there was nothing to do, no page was moved and no ledger written. If another process changed the list first, no
    page was moved, but a ledger was written; the reaper deletes it.
    """

    pages: int
    ledger_id: int | None


@dataclass(frozen=True, slots=True)
class _Taken:
    """Full pages as stored in their znodes, the znode versions, and the pages' index lines."""

    data: tuple[bytes, ...]
    versions: tuple[int, ...]
    lines: PageIndex


def move_steps(
    paths: LogPaths,
    now_ms: Callable[[], int],
    *,
    max_znode_pages: int = MAX_ZNODE_PAGES,
    keep_pages: int = KEEP_PAGES,
    new_id: Callable[[], str] = lambda: str(uuid4()),
) -> Steps[MoveReport]:
    """Move pages if more than ``max_znode_pages`` full pages are znodes.

    Keeps the newest ``keep_pages`` of them and moves at most MAX_MOVED_PAGES. ``new_id`` names the move and must never
    return the same name twice.

    Raises NoSuchLogError and LogReplacedError; MetadataFormatError for a damaged list, which is not changed; the ledger
    client's error; MetadataUnavailableError, MetadataConflictError and OutcomeUnknownError, after which the move can be
    retried.
    """
    assert 1 <= keep_pages <= max_znode_pages, "the tail page stays, and so does a full page at least"
    head = (yield from head_steps(paths)).head
    first = head.first_znode_page
    if head.tail_page - first <= max_znode_pages:
        return MoveReport(0, None)
    taken = yield from _take(paths, head, range(first, min(head.tail_page - keep_pages, first + MAX_MOVED_PAGES)))
    if taken is None:
        return MoveReport(0, None)
    directory = yield from _directory(paths, head, taken.lines)

    run_path = paths.run_at(INDEX, new_id())
    yield from change_steps(MakeZnodes(paths, paths.runs_at(INDEX)), now_ms)
    written = yield WriteLedger(_registrar(paths, run_path), (*taken.data, encode_directory(paths.log_id, directory)))
    if isinstance(written, Failed):
        raise written.error
    if isinstance(written, Conflict):
        yield from head_steps(paths)
        raise MetadataConflictError(f"{_what(paths)}: no index ledger could be made ({written.reason})")
    assert isinstance(written, Created), written
    position = IndexPosition(written.ledger_id, len(taken.data), directory.end_page, directory.end_offset)
    moved = yield from change_steps(PublishMove(paths, run_path, head.index, position, first, taken.versions), now_ms)
    return MoveReport(len(taken.data) if moved else 0, written.ledger_id)


class PublishMove:
    """The change that makes the head refer to a move's ledger. Its result is whether this move is known to have taken
    the pages out of ZooKeeper.

    It requires that the head still refers to the index from which the move began, and that the ledger is not condemned.
    Condemning a ledger writes the znode of its run, whose version is checked.
    """

    def __init__(
        self,
        paths: LogPaths,
        run_path: str,
        before: IndexPosition | None,
        position: IndexPosition,
        first_page: int,
        versions: tuple[int, ...],
    ) -> None:
        self.paths = paths
        self._run_path = run_path
        self._before = before
        self._position = position
        self._first_page = first_page
        #: Versions of the page znodes from ``first_page`` on.
        self._versions = versions

    @property
    def what(self) -> str:
        """For error texts: names the log and the index ledger."""
        return f"{_what(self.paths)} {self._position.ledger_id}"

    @property
    def again(self) -> str:
        """A repetition moves what is still in ZooKeeper. The reaper deletes the ledger of a move that failed."""
        return "move again, no page is lost or moved twice"

    def decide(self, readings: Readings, now_ms: int, maybe: bool | None) -> AlreadyDone[bool] | Plan[bool]:
        """Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
        paths, position = self.paths, self._position
        registration_path = f"{self._run_path}/{position.ledger_id}"
        readings.require(self._run_path, registration_path, paths.head)
        run, registration = readings.get(self._run_path), readings.get(registration_path)
        read = read_head(readings, paths)
        head = read.head
        if head.index == position:
            return AlreadyDone(True)
        if (
            head.index != self._before
            or head.first_page >= position.end_page
            or run is None
            or registration is None
            or decode_registration(registration.data, registration_path).condemned
        ):
            return AlreadyDone(False)
        # The reaper deletes pages below the first one independently.
        gone = max(0, head.first_page - self._first_page)
        deletes = (
            DeleteOp(paths.page(number), version)
            for number, version in enumerate(self._versions[gone:], self._first_page + gone)
        )
        return Plan(
            (),
            (
                CheckOp(paths.identity, -1),
                CheckOp(self._run_path, run.version),
                read.write(paths, replace(head, index=position)),
                *deletes,
            ),
            True,
        )


def _registrar(paths: LogPaths, run_path: str) -> LedgerRegistrar:
    """Return a registrar that creates the run together with its only ledger."""
    register = registrar(paths, run_path)
    return lambda ledger_id: (CreateOp(run_path), *register(ledger_id))


def _what(paths: LogPaths) -> str:
    return f"move of pages of log {paths.name} into an index ledger"


def _take(paths: LogPaths, head: Head, numbers: range) -> Steps[_Taken | None]:
    """Read pages ``numbers``. Returns None if another process moved or dropped some of them in the meantime."""
    data: list[bytes] = []
    versions: list[int] = []
    lines: list[Line] = []
    end_offset = None
    if head.index is not None and head.index.end_page == numbers.start:
        end_offset = head.index.end_offset
    for part in in_parts(numbers, _READ_PAGES):
        znodes = yield from read_steps(paths, tuple(map(paths.page, part)))
        for number in part:
            path = paths.page(number)
            znode = znodes[path]
            if znode is None:
                if number < (yield from head_steps(paths)).head.first_znode_page:
                    return None
                raise MetadataFormatError(f"page of segments {path} is missing")
            page = decode_page(znode.data, path, log_id=paths.log_id, number=number)
            if not len(page.table) or page.open_tail or end_offset not in (None, page.base_offset):
                raise MetadataFormatError(
                    f"page of segments {path} is damaged: empty, open, or it does not start where the page before ends"
                )
            end_offset = page.end_offset
            data.append(znode.data)
            versions.append(znode.version)
            lines.append(line_of(page))
    assert end_offset is not None, "there are pages"
    return _Taken(tuple(data), tuple(versions), PageIndex.of(numbers.start, end_offset, lines))


def _directory(paths: LogPaths, head: Head, moved: PageIndex) -> Steps[PageIndex]:
    """Return ``moved``, preceded by the existing lines that are still needed, or with a link to them."""
    position = head.index
    if position is None or position.end_page <= head.first_page:
        return moved
    known = (yield from directory_steps(paths, position)).since(head.first_page)
    if len(known) + len(moved) > MAX_LINES:
        return replace(moved, previous=position)
    return known.then(moved)
