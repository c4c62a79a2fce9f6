"""Measures what grows at 1, 10 and 100 times a size (``--steps``), and how time and memory grow with it.

For each subject: seconds, processor seconds (and those of Python's garbage collector among them) and peak memory of the
process that does the work, processor seconds of the bookies meanwhile, and the exponent between the sizes: 1 means that
time grows as the size does. The last exponent counts, because constant costs matter least there. ``own`` is the
exponent of the processor time without the collector's. ``over`` lists the figures whose last exponent is above 1.1.

Subjects: a list of segments (open a log, plan to read all of it), ledgers of a bookie (its start, a collection), open
ledgers (create, append to each, close), logs (start a query over a pattern, ``latestOffset``), tasks of a commit, and
znodes (list all ledgers).
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from benchmarks.growth_worker import LOGS_ROOT, Taken, create_ledgers, write_metadata
from benchmarks.long_logs import make_log, read_in_fresh_process
from benchmarks.processes import cpu_seconds, peak_resident_mib
from benchmarks.report import figure
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, LogSettings, LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from bookie_server.local.state import PortChooser

NAME: Final = "growth"
_STEPS: Final = (1, 10, 100)
_EXPONENT_LIMIT: Final = 1.1
#: What takes less is not compared.
_LEAST_S: Final = 0.01
_START_TIMEOUT_MS: Final = 300_000
_HTTP_TIMEOUT_S: Final = 60

Measured = dict[str, Taken]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--subjects", nargs="*", choices=[*_SUBJECTS], default=[*_SUBJECTS])
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    parser.add_argument("--steps", type=int, nargs="+", default=[*_STEPS], help="how many times the smallest size")
    options = parser.parse_args(arguments)
    if len(options.steps) < 2 or any(more <= less for less, more in pairwise([0, *options.steps])):
        parser.error(f"--steps {options.steps}: name at least two sizes, each larger than the one before")
    over: list[str] = []
    for subject in options.subjects:
        measure, smallest = _SUBJECTS[subject]
        over += _tell(subject, measure, max(1, smallest // 10) if options.quick else smallest, options.steps)
    figure(NAME, "over", len(over), "figures", limit=_EXPONENT_LIMIT, names=over)


def _tell(
    subject: str, measure: Callable[[LocalCluster, int], Measured], smallest: int, times: Sequence[int]
) -> list[str]:
    """Print a subject's figures. Return the names of those that grow too fast."""
    found: list[tuple[int, Measured]] = []
    for step in times:
        # Each size has a cluster of its own, so that no size pays for what another has left.
        with (
            tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
            LocalCluster(Path(directory) / "cluster", bookies=3, start_timeout_ms=_START_TIMEOUT_MS) as cluster,
        ):
            found.append((step * smallest, measure(cluster, step * smallest)))
    over = []
    for name in found[0][1]:
        taken = [measured[name] for _, measured in found]
        for (size, _), each in zip(found, taken, strict=True):
            figure(
                NAME,
                f"{subject}.{name}",
                each.seconds,
                "s",
                size=size,
                cpu_s=round(each.cpu_s, 3),
                collector_s=round(each.collector_s, 3),
                bookies_cpu_s=round(each.bookies_cpu_s, 2),
                peak_mib=round(each.peak_mib, 1),
            )
        by_time = _exponents(times, [each.seconds for each in taken])
        figure(
            NAME,
            f"{subject}.{name}.exponent",
            by_time[-1],
            "exponent",
            before=by_time[:-1],
            cpu=_exponents(times, [each.cpu_s for each in taken]),
            own=_exponents(times, [each.cpu_s - each.collector_s for each in taken]),
            more_mib=[round(more.peak_mib - less.peak_mib, 1) for less, more in pairwise(taken)],
            limit=_EXPONENT_LIMIT,
        )
        if by_time[-1] > _EXPONENT_LIMIT:
            over.append(f"{subject}.{name}")
    return over


def _exponents(times: Sequence[int], seconds: Sequence[float]) -> list[float]:
    counted = [max(value, _LEAST_S) for value in seconds]
    return [
        round(math.log(counted[larger] / counted[smaller]) / math.log(times[larger] / times[smaller]), 2)
        for smaller, larger in pairwise(range(len(times)))
    ]


def _in_fresh_process(what: str, cluster: LocalCluster, size: int) -> Measured:
    """What ``growth_worker`` measured of itself."""
    pids = [str(bookie.pid) for bookie in cluster.bookies]
    command = [sys.executable, "-m", "benchmarks.growth_worker", what, cluster.metadata_service_uri, str(size), *pids]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_800, check=False)
    if done.returncode:
        raise RuntimeError(f"{what} of {size} failed:\n{done.stderr}")
    return {name: Taken(*values) for name, values in json.loads(done.stdout.splitlines()[-1]).items()}


def _segments(cluster: LocalCluster, size: int) -> Measured:
    with BlockingClient(cluster.metadata_service_uri) as client:
        make_log(LogStore.of(client, LOGS_ROOT), "long", size, indexed=True)
    read = read_in_fresh_process(cluster.metadata_service_uri, LOGS_ROOT, "long", everything=True)
    begun = read.seconds["imports"]
    cpu = read.cpu_seconds["plan"] - read.cpu_seconds["imports"]
    return {"plan": Taken(read.seconds["plan"] - begun, cpu, read.peak_mib["plan"])}


def _ledgers_of_a_bookie(cluster: LocalCluster, size: int) -> Measured:
    for other in cluster.bookies[1:]:
        other.terminate()
    create_ledgers(cluster.metadata_service_uri, size)
    bookie = cluster.bookies[0]
    if not bookie.terminate():
        raise RuntimeError(bookie.failure("the bookie did not end well"))
    port = PortChooser(set()).choose()
    token = bookie.directory / "admin-token"
    token.write_text(secrets.token_hex(32))
    with bookie.conf_path.open("a", encoding="utf-8") as conf:
        conf.write(f"httpServerEnabled=true\nhttpServerPort={port}\nhttpServerTokenFile={token}\n")
    began = time.perf_counter()
    bookie.start()
    bookie.wait_registered(_START_TIMEOUT_MS)
    assert bookie.pid is not None
    start = Taken(time.perf_counter() - began, cpu_seconds(bookie.pid), peak_resident_mib(bookie.pid))
    began, cpu = time.perf_counter(), cpu_seconds(bookie.pid)
    url = f"http://127.0.0.1:{port}/api/v1/bookie/gc"
    asked = Request(url, headers={"Authorization": f"Bearer {token.read_text().strip()}"}, method="PUT")
    urlopen(asked, timeout=_HTTP_TIMEOUT_S).close()
    while "true" in urlopen(url, timeout=_HTTP_TIMEOUT_S).read().decode():
        time.sleep(0.01)
    collection = Taken(time.perf_counter() - began, cpu_seconds(bookie.pid) - cpu, peak_resident_mib(bookie.pid))
    return {"start": start, "collection": collection}


def _open_ledgers(cluster: LocalCluster, size: int) -> Measured:
    return _in_fresh_process("open_ledgers", cluster, size)


def _logs(cluster: LocalCluster, size: int) -> Measured:
    settings = LogSettings.create(Quorum(1, 1, 1), DigestType.CRC32C, EntryFormat.RAW, b"")
    with BlockingClient(cluster.metadata_service_uri) as client:
        store = LogStore.of(client, LOGS_ROOT)
        for number in range(size):
            log = store.create_log(f"log-{number}", settings)
            ledger_id = 1_000 + number
            client.zookeeper.transaction(log.ledger_registrar("writer", "run")(ledger_id))
            part = LedgerRange(ledger_id, 0, 9, 10, 1_000)
            message = CommitMessage(log.log_id, "writer", "run", "query", 0, 0, (part,))
            log.commit(CommitRequest(log.log_id, "writer", "run", "query", 0, (message,)))
    return _in_fresh_process("logs", cluster, size)


def _tasks_of_a_commit(cluster: LocalCluster, size: int) -> Measured:
    return _in_fresh_process("tasks_of_a_commit", cluster, size)


def _znodes(cluster: LocalCluster, size: int) -> Measured:
    with BlockingClient(cluster.metadata_service_uri) as client:
        write_metadata(client, size)
    return _in_fresh_process("znodes", cluster, size)


#: How each subject is measured, and the smallest size.
_SUBJECTS: Final[dict[str, tuple[Callable[[LocalCluster, int], Measured], int]]] = {
    "segments": (_segments, 10_000),
    "ledgers_of_a_bookie": (_ledgers_of_a_bookie, 200),
    "open_ledgers": (_open_ledgers, 50),
    "logs": (_logs, 10),
    "tasks_of_a_commit": (_tasks_of_a_commit, 50),
    "znodes": (_znodes, 1_000),
}


if __name__ == "__main__":
    main()
