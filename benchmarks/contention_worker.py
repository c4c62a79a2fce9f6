"""One process of the benchmark ``commit_contention``: ``python contention_worker.py ROLE URI ROOT LOG …``.

Run as a script with the ``bk_spark`` on PYTHONPATH: of this commit, or of another one to compare with. It therefore
uses only what both have. It prints ``ready``, waits for a line, does its work, and prints one JSON object.
"""

from __future__ import annotations

import inspect
import itertools
import json
import sys
import threading
import time
import zlib
from typing import Any, Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore, Policy
from bk_spark.log.gc.reap_rules import ReapLimits
from bk_spark.log.gc.reaper import reap_steps
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment, encode
from bk_spark.protocol.metadata.znodes import CreateOp
from bk_spark.protocol.quorum import Quorum

PASSWORD: Final = b"secret"
QUORUM: Final = Quorum(1, 1, 1)
_AT_ONCE: Final = 500


def begin() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def make(store: LogStore, name: str) -> dict[str, Any]:
    """Create the log, empty."""
    store.create_log(name, LogSettings.create(QUORUM, DigestType.CRC32C, EntryFormat.RAW, PASSWORD))
    return {}


def _set_at_end(ended: threading.Event) -> None:
    sys.stdin.readline()
    ended.set()


def small(log: Log, app: str, every_s: float) -> dict[str, Any]:
    """Commit one range each ``every_s`` until told to end. Returns when each commit began (Unix time), its duration,
    and the failures."""
    ledger_id = 1_000 + int(app.removeprefix("small"))
    log.zookeeper.transaction(log.ledger_registrar(app, "run")(ledger_id))
    begin()
    began_s, took_s, errors = [], [], []
    ended = threading.Event()
    threading.Thread(target=_set_at_end, args=(ended,), daemon=True).start()
    start = time.monotonic()
    for batch_id in itertools.count():
        if ended.is_set():
            break
        due = start + batch_id * every_s
        time.sleep(max(0.0, due - time.monotonic()))
        part = LedgerRange(ledger_id, 10 * batch_id, 10 * batch_id + 9, 10, 1000)
        began_s.append(time.time())
        before = time.monotonic()
        try:
            log.commit(_request(log, app, "run", batch_id, (part,)))
        except BookKeeperError as error:
            errors.append(str(error))
        took_s.append(time.monotonic() - before)
    return {"began_s": began_s, "took_s": took_s, "errors": errors}


def large(log: Log, app: str, ledgers: int, number: int) -> dict[str, Any]:
    """Make one commit of ``ledgers`` ledgers."""
    register = log.ledger_registrar(app, "run")
    first = 1_000_000 * (1 + number)
    for start in range(first, first + ledgers, _AT_ONCE):
        part = range(start, min(start + _AT_ONCE, first + ledgers))
        log.zookeeper.transaction([op for ledger_id in part for op in register(ledger_id)])
    messages = tuple(
        CommitMessage(log.log_id, app, "run", "query", 0, n, (LedgerRange(first + n, 0, 999, 1000, 100_000),))
        for n in range(ledgers)
    )
    request = CommitRequest(log.log_id, app, "run", "query", 0, messages)
    begin()
    return _timed(lambda: log.commit(request))


def reap(log: Log, app: str, leftovers: int, number: int) -> dict[str, Any]:
    """Run the reaper on closed ledgers left by a retired run: condemned in one round, deleted in the next."""
    # The reaper only needs metadata of closed ledgers, whatever log they belong to.
    first = 1_000_000 * (1 + number) + 10_000_000 * (1 + zlib.crc32(log.log_id.encode()) % 100)
    register = log.ledger_registrar(app, "r0")
    metadata = encode(
        LedgerMetadata(
            QUORUM, (Segment(0, ("127.0.0.1:3181",)),), LedgerState.CLOSED, 9, 1000, DigestType.CRC32C, PASSWORD
        )
    )
    for ledger_id in range(first, first + leftovers):
        path = log.ledgers.ledger_path(ledger_id)
        if ledger_id == first or ledger_id % 1000 == 0:
            log.zookeeper.ensure_path(path.rpartition("/")[0])
        log.zookeeper.transaction([CreateOp(path, metadata), *register(ledger_id)])
    for batch_id, run in enumerate(("r0", "r1")):
        log.commit(_request(log, app, run, batch_id, ()))
    begin()
    limits = ReapLimits(delete_grace_ms=0)
    # The older commit compares no clocks.
    if "check_clock" in inspect.signature(reap_steps).parameters:
        log.set_policy(Policy(delete_grace_ms=0))
    compare: dict[str, Any] = (
        {"check_clock": lambda: None} if "check_clock" in inspect.signature(reap_steps).parameters else {}
    )
    reports = []

    def rounds() -> None:
        for _ in range(2):
            now_ms = lambda: time.time_ns() // 1_000_000 + 1  # noqa: E731
            reports.append(log.run(reap_steps(log.paths, log.ledgers.ledger_path, now_ms, limits=limits, **compare)))

    told = _timed(rounds)
    told["condemned"] = sum(len(report.condemned) for report in reports)
    told["deleted"] = sum(len(report.deleted) for report in reports)
    told["failed"] = sorted({why for report in reports for _, why in report.failed})[:3]
    return told


def _timed(work: Any) -> dict[str, Any]:
    began_s, before = time.time(), time.monotonic()
    error = ""
    try:
        work()
    except BookKeeperError as failure:
        error = f"{type(failure).__name__}: {failure}"
    return {"began_s": began_s, "took_s": time.monotonic() - before, "error": error}


def _request(log: Log, app: str, run: str, batch_id: int, ranges: tuple[LedgerRange, ...]) -> CommitRequest:
    message = CommitMessage(log.log_id, app, run, "query", batch_id, 0, ranges)
    return CommitRequest(log.log_id, app, run, "query", batch_id, (message,))


def main() -> None:
    role, uri, root, name, *rest = sys.argv[1:]
    with BlockingClient(uri) as client:
        store = LogStore.of(client, root)
        match role, rest:
            case "make", []:
                told = make(store, name)
            case "small", [app, every_s]:
                told = small(store.open_log(name, password=PASSWORD), app, float(every_s))
            case "large", [app, ledgers, number]:
                told = large(store.open_log(name, password=PASSWORD), app, int(ledgers), int(number))
            case "reap", [app, leftovers, number]:
                told = reap(store.open_log(name, password=PASSWORD), app, int(leftovers), int(number))
            case _:
                raise SystemExit(f"unknown role {role} with {rest}")
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
