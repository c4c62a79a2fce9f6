"""Compares our self-healing with Apache's on the same loss: time to full replication, traffic, and other writers.

A cluster of ZooKeeper and five of our bookies is written once, and saved. For each round and each daemon, ours and
Apache's, in alternating order, the files are restored and synced, the cluster and the daemon start, and a writer adds
100 entries of 1 KiB a second to bookies that stay. Then the bookie that most ledgers name is killed for good. The
repair ends when no ledger is marked and no metadata name the bookie. A sample of the entries is then read at every
member.

The writer's adds are measured before the loss and after the repair, when the copies are flushed, and in between from
the end of the lost bookie's session to full replication. What the loss itself costs is a figure of its own: until its
session ends, nobody repairs anything.

Cases: ``many`` are 1,000 ledgers of 1 MB; ``one`` is a ledger of 1 GB. Ledgers are closed, 3/3/3, CRC32C.

Both daemons are processes of their own with the same configuration: ``lostBookieRecoveryDelay=0``, no rate limits, no
other checks, else their defaults. So both repair one ledger at once (see ``--at-once``). Apache's
has the JVM options of its own scripts. One round of one case takes some three minutes.

Each figure has the lowest, median and highest value of the rounds for both, and the median ratio ours/Apache's:
  whole             time from the loss to full replication
  detection         its first part, until the bookie's session expires: the same for both
  first_mark        from then to the first mark
  marking           from the first mark until every ledger that names the bookie was marked, or is repaired
  repair            from the expiry to full replication
  read, written     bytes of entries that bookies returned and stored, per byte of lost copies, without the writer's
  writer.p99        of adds from expiry to full replication, over that of adds before the loss and after the repair
  cpu, peak_memory  of the daemon

``writer.slow`` tells for each run in which seconds after the expiry adds were slower than 1.5 times the calm p99.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.lost_bookie import Case, LossWatch, SavedCluster, wait_until
from benchmarks.processes import cpu_seconds, machine_cpu_seconds, peak_resident_mib
from benchmarks.report import figure, p99
from benchmarks.steady_writer import SteadyWriter
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bookie_server.local import LocalCluster
from bookie_server.local.process import STOP_TIMEOUT_MS, GuardedProcessGroup
from bookie_server.local.state import DirectoryLock, PortChooser
from tests.interop.autorecovery import AutoRecovery, ShippedApacheAutoRecovery

NAME: Final = "autorecovery"
_KINDS: Final[Mapping[str, type[AutoRecovery]]] = {"ours": AutoRecovery, "apache": ShippedApacheAutoRecovery}
_SETTINGS: Final = {
    "lostBookieRecoveryDelay": "0",
    # Only the search for lost bookies runs.
    "auditorPeriodicCheckInterval": "0",
    "allowLoopback": "true",
    "httpServerEnabled": "false",
}
_ENTRY_BYTES: Final = 10_000
_LEDGER_BYTES: Final = 1_000_000
_ONE_BYTES: Final = 1_000_000_000
_WRITES_PER_S: Final = 100.0
_WRITE_BYTES: Final = 1024
_WARM_UP_S: Final = 2.0
#: What counts of the writer's adds can be wrong by: those under way at the begin and at the end, three copies of each.
_UNDER_WAY_BYTES: Final = 2 * 3 * 2 * _WRITE_BYTES
#: Our auditor begins nothing for two session timeouts. This much later both daemons are idle.
_SETTLE_S: Final = 1.0
_REPAIR_TIMEOUT_S: Final = 3600.0
#: Rare, since the questions themselves take a core from bookies and writer.
_POLL_S: Final = 0.25
#: An add is slow if it took so many times the calm p99.
_SLOW: Final = 1.5
_AIMS: Final = {"read": 1.0, "written": 1.0, "writer.p99": 1.5}
_AIMS_BESIDE_APACHE: Final = {"whole": 1.0, "writer.p99": 1.5}
#: What checks read of each ledger: the first and last entry, at the member that stays and at the new one.
_CHECKED_ENTRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """``calm_s``: how long the writer is measured before the loss, and again after the repair. ``zk_timeout_ms`` is for
    bookies and daemons. ``at_once``: ledgers that our daemon repairs at once."""

    calm_s: float = 15.0
    #: So long after a repair its copies are in entry logs: ``flushInterval`` and the pauses of a flush, and a second.
    flushed_s: float = 14.0
    zk_timeout_ms: int = 6_000
    at_once: int | None = None
    #: More keys of our daemon's configuration.
    ours: Mapping[str, str] = field(default_factory=dict)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    begun = time.monotonic()
    ours = dict(options.ours)
    settings = Settings(2.0, 1.0, 2_000, ours=ours) if options.quick else Settings(at_once=options.at_once, ours=ours)
    scale, rounds = (0.01, 1) if options.quick else (options.scale, options.rounds)
    for name in options.cases:
        with tempfile.TemporaryDirectory(prefix="bk-bench-", dir=options.directory) as text:
            saved = SavedCluster(Path(text), _case(name, options.entry_bytes, scale), settings.zk_timeout_ms)
            found: dict[str, list[dict[str, float]]] = {kind: [] for kind in options.daemons}
            for number in range(rounds):
                for kind in options.daemons[:: -1 if number % 2 else 1]:
                    found[kind].append(_run(saved, kind, Path(text) / f"{kind}-{number}", settings))
            _tell(saved, found)
    figure(NAME, "conditions.duration", time.monotonic() - begun, "s", rounds=rounds, cores=os.cpu_count())


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"benchmarks {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", choices=["many", "one"], default=["many", "one"])
    parser.add_argument("--daemons", nargs="*", choices=[*_KINDS], default=[*_KINDS])
    parser.add_argument("--scale", type=float, default=1.0, help="share of 1,000 ledgers, and of 1 GB")
    parser.add_argument("--entry-bytes", type=int, default=_ENTRY_BYTES, help="payload of an entry")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", type=int, help="ledgers that our daemon repairs at the same time")
    parser.add_argument(
        "--ours", nargs="*", default=[], type=_key_and_value, metavar="KEY=VALUE",
        help="keys of our daemon's configuration, for example rereplicationUnyieldingBytesPerSecond=0",
    )  # fmt: skip
    parser.add_argument("--directory", help="for the bookies' files; default: the system's temporary directory")
    parser.add_argument("--quick", action="store_true", help="one round of a hundredth")
    return parser.parse_args(arguments)


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _case(name: str, entry_bytes: int, scale: float) -> Case:
    if name == "many":
        return Case(name, max(1, int(1000 * scale)), max(1, _LEDGER_BYTES // entry_bytes), entry_bytes)
    return Case(name, 1, max(1, int(_ONE_BYTES * scale) // entry_bytes), entry_bytes)


def _run(saved: SavedCluster, kind: str, directory: Path, settings: Settings) -> dict[str, float]:
    """Lose the bookie once. Return the figures."""
    with (
        saved.restored() as cluster,
        LossWatch(cluster.metadata_service_uri) as watch,
        _daemon(kind, directory, cluster, settings) as daemon,
    ):
        uri, victim = cluster.metadata_service_uri, saved.victim
        election = AuditorElection(watch.zk, watch.root)
        wait_until("the election of an auditor", lambda: _alive(daemon) and election.auditor(), 60)
        time.sleep(2 * settings.zk_timeout_ms / 1000 + _SETTLE_S)
        with SteadyWriter(uri, victim, _WRITES_PER_S, _WRITE_BYTES) as writer:
            time.sleep(_WARM_UP_S)
            begun_s = time.monotonic()
            time.sleep(settings.calm_s)
            pids = [server.pid for server in (*cluster.zookeepers, *cluster.bookies, daemon) if server.pid]
            usage = _Usage([*pids, writer.pid, os.getpid()])
            assert daemon.pid is not None
            cpu, traffic = cpu_seconds(daemon.pid), saved.traffic(cluster)
            lost_s = time.monotonic()
            next(bookie for bookie in cluster.bookies if bookie.id == victim).kill()
            expired_s = wait_until("the end of the bookie's session", lambda: not watch.registered(victim), 60)
            first_mark_s, marked_s, whole_s = _follow(watch, saved, daemon)
            cpu, traffic = cpu_seconds(daemon.pid) - cpu, saved.traffic(cluster).since(traffic)
            counted_s = time.monotonic()
            peak_mib, others = peak_resident_mib(daemon.pid), usage.others()
            time.sleep(settings.flushed_s)
            settled_s = time.monotonic()
            time.sleep(settings.calm_s)
            ended_s = time.monotonic()
            writer.stop()
        watch.check_copies(saved)
    own = writer.acknowledged(lost_s, counted_s) * 3
    own_bytes = own * (saved.case.stored_entry_bytes - saved.case.entry_bytes + _WRITE_BYTES)
    before, after = writer.latencies_ms(begun_s, lost_s), writer.latencies_ms(settled_s, ended_s)
    meanwhile = writer.latencies_ms(expired_s, whole_s)
    calm = p99(before + after)
    _tell_slow(saved.case, kind, writer, _SLOW * calm, (expired_s, whole_s))
    return {
        "whole": whole_s - lost_s,
        "detection": expired_s - lost_s,
        "first_mark": first_mark_s - expired_s,
        "marking": marked_s - first_mark_s,
        "repair": whole_s - expired_s,
        "read": traffic.read_bytes / saved.needed_bytes,
        "written": (traffic.written_bytes - own_bytes) / saved.needed_bytes,
        "entries_read": traffic.read_entries / saved.needed_entries,
        "entries_written": (traffic.written_entries - own) / saved.needed_entries,
        "writer.p99_before": p99(before),
        "writer.p99_loss": p99(writer.latencies_ms(lost_s, expired_s)),
        "writer.p99_meanwhile": p99(meanwhile),
        "writer.p99_after": p99(after),
        "writer.p99": p99(meanwhile) / calm,
        "writer.adds_meanwhile": len(meanwhile),
        "cpu": cpu,
        "peak_memory": peak_mib,
        "others": others,
    }


def _follow(watch: LossWatch, saved: SavedCluster, daemon: AutoRecovery) -> tuple[float, float, float]:
    """Return when the first ledger was marked, when all were, and when everything was repaired (monotonic, s)."""
    deadline = time.monotonic() + _REPAIR_TIMEOUT_S
    seen: set[int] = set()
    first_mark_s = marked_s = 0.0
    while True:
        asked_s = time.monotonic()
        marked = watch.marked()
        seen |= marked
        if seen and not first_mark_s:
            first_mark_s = asked_s
        if len(seen) >= len(saved.affected) and not marked_s:
            marked_s = asked_s
        # Reading all metadata costs too much to do it each time.
        if (
            first_mark_s
            and len(marked) <= 1
            and not watch.any_mark()
            and not watch.naming(saved.victim, saved.affected)
        ):
            return first_mark_s, marked_s or asked_s, asked_s
        _alive(daemon)
        if asked_s > deadline:
            raise TimeoutError(daemon.failure(f"{len(marked)} ledgers are still marked"))
        time.sleep(max(0.0, asked_s + _POLL_S - time.monotonic()))


def _tell_slow(case: Case, kind: str, writer: SteadyWriter, limit_ms: float, repair_s: tuple[float, float]) -> None:
    """Tell in which seconds of the repair adds took more than ``limit_ms``, and how many."""
    since_s, until_s = repair_s
    each_s = {}
    for second in range(math.ceil(until_s - since_s)):
        due = writer.latencies_ms(since_s + second, min(until_s, since_s + second + 1))
        each_s[second] = sum(latency_ms > limit_ms for latency_ms in due)
    figure(
        NAME, f"{case.name}.writer.slow", sum(each_s.values()), "adds", daemon=kind, limit_ms=round(limit_ms, 2),
        by_second={second: slow for second, slow in each_s.items() if slow},
    )  # fmt: skip


def _alive(daemon: AutoRecovery) -> bool:
    if not daemon.running:
        raise RuntimeError(daemon.failure("the daemon ended"))
    return True


@contextmanager
def _daemon(kind: str, directory: Path, cluster: LocalCluster, settings: Settings) -> Iterator[AutoRecovery]:
    directory.mkdir()
    keys = {**_SETTINGS, "zkTimeout": str(settings.zk_timeout_ms)}
    if kind == "ours":
        keys |= settings.ours
    if settings.at_once is not None:
        keys["rereplicationLedgersAtOnce"] = str(settings.at_once)
    lock = DirectoryLock(directory)
    group = GuardedProcessGroup(lock.fd)
    port = PortChooser(set()).choose()
    daemon = _KINDS[kind](directory / "daemon", group, cluster.metadata_service_uri, port, keys)
    try:
        daemon.start()
        yield daemon
        daemon.terminate(STOP_TIMEOUT_MS)
    finally:
        daemon.kill()
        group.close()
        lock.release()


class _Usage:
    """How many cores processes other than ``pids`` use."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._began = time.monotonic()
        self._before = self._used()

    def _used(self) -> tuple[float, dict[int, float]]:
        own = {}
        for pid in self._pids:
            try:
                own[pid] = cpu_seconds(pid)
            except FileNotFoundError:
                continue  # the lost bookie
        return machine_cpu_seconds(), own

    def others(self) -> float:
        (all_before, before), (all_now, now) = self._before, self._used()
        own = sum(now[pid] - before[pid] for pid in now)
        return max(0.0, (all_now - all_before - own) / (time.monotonic() - self._began))


_UNITS: Final = {
    "writer.p99_before": "ms",
    "writer.p99_loss": "ms",
    "writer.p99_meanwhile": "ms",
    "writer.p99_after": "ms",
    "writer.adds_meanwhile": "adds",
}
_UNITS_OF_TIMES: Final = dict.fromkeys(("whole", "detection", "first_mark", "marking", "repair", "cpu"), "s")


def _tell(saved: SavedCluster, found: Mapping[str, list[dict[str, float]]]) -> None:
    case = saved.case
    about = {"ledgers": len(saved.affected), "entries": case.entries, "entry_bytes": case.entry_bytes}
    units = {**_UNITS, **_UNITS_OF_TIMES, "peak_memory": "MiB", "others": "cores"}
    for name in next(iter(found.values()))[0]:
        values = {kind: [run[name] for run in runs] for kind, runs in found.items()}
        spread = {kind: [round(each, 3) for each in _spread(of_kind)] for kind, of_kind in values.items()}
        # The cores of other processes are a condition, not a result. A time may be too short to be seen.
        if set(values) == set(_KINDS) and name != "others" and all(values["apache"]):
            ratios = [ours / theirs for ours, theirs in zip(values["ours"], values["apache"], strict=True)]
            figure(
                NAME, f"{case.name}.{name}", statistics.median(ratios), "ratio", of=units.get(name, "ratio"),
                ratios=[round(each, 3) for each in ratios], **spread, **about,
            )  # fmt: skip
            if name in _AIMS_BESIDE_APACHE:
                _tell_aim(case, f"{name}.beside_apache", statistics.median(ratios), _AIMS_BESIDE_APACHE[name])
        else:
            value = statistics.median(values.get("ours") or values["apache"])
            figure(NAME, f"{case.name}.{name}", value, units.get(name, "ratio"), **spread, **about)
        if "ours" in values and name in _AIMS:
            needed = _CHECKED_ENTRIES / case.entries if name == "read" else 0.0
            # Adds of the writer that were under way when bytes were counted.
            uncertain = _UNDER_WAY_BYTES / saved.needed_bytes if name == "written" else 0.0
            _tell_aim(case, name, statistics.median(values["ours"]), _AIMS[name] + needed + uncertain)


def _tell_aim(case: Case, name: str, value: float, aim: float) -> None:
    figure(NAME, f"aim.{case.name}.{name}", value, "ratio", aim=aim, met=value <= aim)


def _spread(values: list[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)
