"""Rules for applications: which run may commit, which batch is next, which entries a batch may name. No I/O.

An application's znode holds the last committed entry of each ledger in use, for a limited number of ledgers. For the
ledgers that have gone longest without a commit, that entry moves into their registrations. So every range is checked
against one or the other. An entry can never be listed twice, however old its ledger is.

Every transaction that changes a registration also writes the znode of its run. So checking that one znode covers all
registrations that were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Final

from bk_spark.log.core.plan import Readings, is_unchanged
from bk_spark.log.formats.message import CommitRequest
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import (
    MAX_RETIRED_RUNS,
    Application,
    decode_registration,
    encode_registration,
)
from bk_spark.protocol.errors import BatchRefusedError, LedgerRefusedError, RunRetiredError
from bk_spark.protocol.metadata.znodes import SetOp, TransactionOp, Znode

#: Ledgers in use that an application keeps, in addition to those of its last batch.
IN_USE_KEPT: Final = 256
# For the part of a transaction that moves ledgers. The whole transaction must stay below 1 MiB.
_MAX_MOVE_BYTES: Final = 128 * 1024
_OPERATION_BYTES: Final = 64

_NONE_COMMITTED: Final = -1


def check_run(application: Application | None, run: str, log_name: str) -> None:
    """Step 1. Raises RunRetiredError, naming the run that took over."""
    successor = None if application is None else application.successor_of(run)
    if application is not None and successor is not None:
        raise RunRetiredError(
            f"run {run} of application {application.app!r} may no longer write to log {log_name}: run {successor} "
            f"took over, and batch {application.batch_id} was committed last, by run {application.run}"
        )


def is_done(application: Application | None, request: CommitRequest, log_name: str) -> bool:
    """Step 2: whether this batch or a later one is in the log. Raises BatchRefusedError if another query committed it,
    if the query's checkpoint was set back, or if the log was."""
    if application is None:
        return False
    if application.query_id == request.query_id:
        if not request.skip_committed:
            _check_not_set_back(application, request, log_name)
        _check_follows(application, request, log_name)
    elif application.batch_id >= request.batch_id:
        raise BatchRefusedError(
            f"log {log_name}: batch {application.batch_id} of application {application.app!r} was committed by query "
            f"{application.query_id!r}; query {request.query_id!r} now offers batch {request.batch_id}. "
            "A query with a new checkpoint needs a name of its own (txnAppId)"
        )
    return application.batch_id >= request.batch_id


def _check_not_set_back(application: Application, request: CommitRequest, log_name: str) -> None:
    """Refuse a batch from before the query's last batch.

    Spark repeats only the last batch that it began, exactly as planned. An earlier batch that
    comes again was planned anew, perhaps with other rows. Treating it as done could lose rows.
    """
    last, offered = application.query_batch_id, request.query_batch_id
    if last is not None and offered is not None and offered < last:
        raise BatchRefusedError(
            f"log {log_name}: query {request.query_id} has committed its batch {last} for application "
            f"{application.app!r}, and now offers batch {offered}: its checkpoint was set back (or another driver is "
            "at work on it). Spark may plan such batches with other rows, so this one does not count as done. Restore "
            "the checkpoint. Or continue with a new checkpoint, another txnAppId and the right starting offsets. Or, "
            "if the batches certainly have the same rows as before, set option skipCommittedBatches"
        )


def _check_follows(application: Application, request: CommitRequest, log_name: str) -> None:
    """Refuse a sink's batch if the log lacks batches before it, as after ZooKeeper was restored from a backup."""
    last, offered = application.query_batch_id, request.query_batch_id
    if request.consecutive and last is not None and offered is not None and offered > last + 1:
        missing = f"batch {last + 1}" if offered == last + 2 else f"batches {last + 1} to {offered - 1}"
        raise BatchRefusedError(
            f"log {log_name}: query {request.query_id} offers its batch {offered} for application "
            f"{application.app!r}, and the last one in the log is {last}: the log lacks {missing}. Either ZooKeeper "
            "was restored from an older backup, and the log has forgotten them, or the query wrote them elsewhere. "
            "Nothing was committed. Continue with a new checkpoint, another txnAppId, and starting offsets that "
            "bring the missing rows again"
        )


def told_of_beginning(application: Application | None, request: CommitRequest, log_name: str) -> str:
    """Return a warning about a sink's first batch in a log if the query has committed others before. Usually empty."""
    offered = request.query_batch_id
    if application is not None or not request.consecutive or not offered:
        return ""
    return (
        f"log {log_name}: query {request.query_id} begins with its batch {offered}: the log has no batch of "
        f"application {request.app!r}. If earlier ones were written to this log, it was deleted since, or ZooKeeper "
        "was restored from an older backup, and their rows are missing"
    )


def told_of_repetition(application: Application, request: CommitRequest, log_name: str) -> str:
    """Return a warning about a batch that counts as done: some of its rows may not be in the log. Usually empty."""
    batch = f"log {log_name}: batch {request.batch_id} of application {request.app!r}"
    if application.batch_id > request.batch_id:
        if not request.rows:
            return ""
        return (
            f"{batch} counts as done, since batch {application.batch_id} is committed; its {request.rows} rows "
            "were not compared with what was committed before"
        )
    if application.rows == request.rows:
        return ""
    return (
        f"{batch} was committed with {application.rows} rows; this repetition has {request.rows}, and none of them was "
        "added. A batch must have the same rows at each attempt: see docs/delivery.md"
    )


@dataclass(frozen=True, slots=True)
class CheckedLedgers:
    """Ledgers in use after the commit, and the operations on their registrations."""

    in_use: Mapping[int, int]
    operations: tuple[TransactionOp, ...]


def check_ledgers(
    readings: Readings, paths: LogPaths, application: Application | None, request: CommitRequest
) -> CheckedLedgers:
    """Step 3: every ledger is registered and not condemned, and every range starts after the committed entries.

    Raises LedgerRefusedError.
    """
    ranges = request.ranges
    in_use: dict[int, int] = {}
    if application is not None and application.run == request.run:
        in_use = dict(application.in_use)

    run_path = paths.run(request.app, request.run)

    def path_of(ledger_id: int) -> str:
        return f"{run_path}/{ledger_id}"

    named = dict.fromkeys(part.ledger_id for part in ranges)
    new = {ledger_id: path_of(ledger_id) for ledger_id in named if ledger_id not in in_use}
    moved = _to_move(in_use, named, len(path_of(0)))
    readings.require_covered(run_path, *new.values(), *map(path_of, moved))

    last_entries = _last_committed(readings, new, request) | in_use
    for part in sorted(ranges, key=lambda r: r.first_entry):
        last_entry = last_entries[part.ledger_id]
        if part.first_entry <= last_entry:
            raise LedgerRefusedError(
                f"log {paths.name}: batch {request.batch_id} of application {request.app!r} names entries "
                f"{part.first_entry} to {part.last_entry}, but entries up to {last_entry} are in the log already",
                ledger_id=part.ledger_id,
            )
        last_entries[part.ledger_id] = part.last_entry

    if request.anonymous:
        # This is its only batch. Its ledgers will not be checked again.
        return CheckedLedgers({}, ())
    after = {ledger_id: last for ledger_id, last in in_use.items() if ledger_id not in named}
    operations = _move(readings, {path_of(ledger_id): after.pop(ledger_id) for ledger_id in moved})
    return CheckedLedgers(after | {ledger_id: last_entries[ledger_id] for ledger_id in named}, operations)


class LedgerChecks:
    """:func:`check_ledgers` in all attempts of one commit.

    It depends on the application's znode, and on registrations, which the run's znode covers. While neither znode has
    changed, the result of an earlier attempt is still right, and 5,000 registrations need not be compared again.
    """

    def __init__(self) -> None:
        self._found: CheckedLedgers | None = None
        #: The application's and the run's, at that time.
        self._znodes: tuple[Znode | None, Znode | None] = (None, None)

    def check(
        self, readings: Readings, paths: LogPaths, application: Application | None, request: CommitRequest
    ) -> CheckedLedgers:
        """Do :func:`check_ledgers`, if necessary."""
        znodes = (readings.get(paths.app(request.app)), readings.get(paths.run(request.app, request.run)))
        if self._found is None or not all(map(is_unchanged, self._znodes, znodes)):
            self._found, self._znodes = check_ledgers(readings, paths, application, request), znodes
        return self._found


def advance(
    application: Application | None, request: CommitRequest, in_use: Mapping[int, int], time_ms: int, offsets: range
) -> Application:
    """Return the application after the commit of ``request`` at ``offsets``. An earlier run is retired."""
    retired: tuple[str, ...] = ()
    if application is not None:
        retired = application.retired_runs
        if application.run != request.run:
            retired = (*retired, application.run)[-MAX_RETIRED_RUNS:]
    return Application(
        app=request.app,
        query_id=request.query_id,
        batch_id=request.batch_id,
        run=request.run,
        commit_time_ms=time_ms,
        start_offset=offsets.start,
        end_offset=offsets.stop,
        retired_runs=retired,
        in_use=MappingProxyType(dict(in_use)),
        anonymous=request.anonymous,
        rows=request.rows,
        query_batch_id=request.query_batch_id,
    )


def _last_committed(readings: Readings, new: Mapping[int, str], request: CommitRequest) -> dict[int, int]:
    """Return the last committed entry of each ledger, from its registration at the given path."""
    where = f"of application {request.app!r}, run {request.run}"
    found: dict[int, int] = {}
    #: Decoded registrations by their bytes, because most are alike.
    known: dict[bytes, int] = {}
    for ledger_id, path in new.items():
        znode = readings.get(path)
        if znode is None:
            raise LedgerRefusedError(
                f"a commit message {where} names a ledger that is not registered for it (or was deleted since)",
                ledger_id=ledger_id,
            )
        last = known.get(znode.data)
        if last is None:
            registration = decode_registration(znode.data, path)
            if registration.condemned:
                raise LedgerRefusedError(
                    f"a commit message {where} names a ledger that is about to be deleted: nothing referred to it",
                    ledger_id=ledger_id,
                )
            last = registration.last_committed_entry
            last = known[znode.data] = _NONE_COMMITTED if last is None else last
        found[ledger_id] = last
    return found


def _to_move(in_use: Mapping[int, int], named: Mapping[int, None], path_bytes: int) -> list[int]:
    """Return the ledgers that leave the application's znode: those longest without a commit, up to a limit."""
    others = [ledger_id for ledger_id in in_use if ledger_id not in named]
    surplus = len(others) - IN_USE_KEPT
    return list(islice(others, max(0, min(surplus, _MAX_MOVE_BYTES // (path_bytes + 20 + _OPERATION_BYTES)))))


def _move(readings: Readings, last_entries: Mapping[str, int]) -> tuple[TransactionOp, ...]:
    operations = []
    for path, last_entry in last_entries.items():
        znode = readings.get(path)
        # A ledger in use is neither condemned nor deleted. If it is gone anyway, there is nothing to remember.
        if znode is not None:
            registration = replace(decode_registration(znode.data, path), last_committed_entry=last_entry)
            operations.append(SetOp(path, encode_registration(registration), znode.version))
    return tuple(operations)
