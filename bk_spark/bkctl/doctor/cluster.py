"""Checks of ``bkctl doctor`` that ask the cluster: ZooKeeper, clocks, bookies and their disks."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from bk_spark.bkctl.doctor.findings import Finding, ok, problem, warning
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.placement.registry import RegisteredBookie
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import BookKeeperError, LoginError, RequestRefusedError, TlsError, UnauthorizedError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo

_TIMEOUT_MS: Final = 5_000
_METADATA_TIMEOUT_MS: Final = 10_000
_PROBE_TIMEOUT_S: Final = 3.0
#: The default ensemble size.
_ENOUGH_BOOKIES: Final = 3
#: Bookies stop accepting writes at 95 % (diskUsageThreshold).
_FULL_SHARE: Final = 0.90
#: What to do about bookies that do not answer, by the error. The first kind that occurs counts.
_REMEDIES: Final[dict[type[BookKeeperError], str]] = {
    TlsError: "compare the keys of TLS in --client-conf with the bookies' (docs/security.md, When it does not work)",
    LoginError: "correct the user or the password of --client-conf (clientAuthProviderFactoryClass, docs/security.md)",
}
_AWAY: Final = (
    "check that they run, and that this machine can reach the address they advertise (advertisedAddress, firewall)"
)


@contextlib.contextmanager
def connected(uri: str, given: ClientConfig) -> Iterator[tuple[BlockingClient | None, Finding]]:
    """Connect to the cluster with ``given``, and shorter timeouts. Yields a client, or None without a connection, and
    the finding about ZooKeeper."""
    try:
        servers = MetadataServiceUri.parse(uri).servers.split(",")
    except BookKeeperError as error:
        yield None, problem("zookeeper", error.message, "correct --metadata-service-uri")
        return
    away = [server for server in servers if not _listens(server)]
    try:
        client = BlockingClient(
            uri,
            replace(
                given,
                connect_timeout_ms=_TIMEOUT_MS,
                read_timeout_ms=_TIMEOUT_MS,
                metadata_timeout_ms=_METADATA_TIMEOUT_MS,
            ),
        )
    except BookKeeperError as error:
        if len(away) == len(servers):
            # More specific than the client's message, which lists several possible reasons.
            seen = f"nobody listens at {', '.join(away)}"
            yield None, problem("zookeeper", seen, "start ZooKeeper, or correct the address in --metadata-service-uri")
        else:
            seen, _, remedy = error.message.partition("; ")
            yield None, problem("zookeeper", seen, remedy or "see ZooKeeper's log")
        return
    with client:
        if away:
            yield client, warning("zookeeper", f"nobody listens at {', '.join(away)}", "start these servers")
        else:
            yield client, ok("zookeeper", f"{', '.join(servers)}, cluster at {client.root}")


def clock(client: BlockingClient, log_root: str) -> Finding:
    """Compare this machine's clock with ZooKeeper's. Creates or changes one znode below the root of logs."""
    try:
        difference = LogStore.of(client, log_root).clock_difference()
    except BookKeeperError as error:
        return problem("clock", error.message, "let this user write below the root of logs (--log-root)")
    if difference.is_small:
        return ok("clock", f"this machine's is {difference}")
    return problem(
        "clock",
        f"this machine's is {difference}, so it may not delete what is old",
        "set the clock that is wrong (NTP), here or at ZooKeeper's servers",
    )


def bookies(client: BlockingClient) -> list[Finding]:
    """Check that there are bookies, that they accept writes and are reachable from here, and that their disks have
    room."""
    try:
        registered = client.bookies()
    except BookKeeperError as error:
        return [problem("bookies", error.message, "see ZooKeeper's log")]
    if not registered:
        return [
            problem(
                "bookies", "no bookie is registered", "start bookies, or correct the path in --metadata-service-uri"
            )
        ]
    answers = client.disk_space(client.config.read_timeout_ms)
    return [_registered(registered), _reached(answers), _disks(answers)]


def _registered(registered: tuple[RegisteredBookie, ...]) -> Finding:
    read_only = [one.bookie_id for one in registered if one.read_only]
    writable = len(registered) - len(read_only)
    seen = f"{writable} take writes"
    if read_only:
        make = warning if writable >= _ENOUGH_BOOKIES else problem
        seen += f", {len(read_only)} are read-only ({', '.join(read_only)})"
        return make("bookies", seen, "free disk space on them; their logs say why they are read-only")
    if writable < _ENOUGH_BOOKIES:
        remedy = f"start more, or write with ensembleSize {writable} and quorums no larger; the default needs 3"
        return warning("bookies", seen, remedy)
    return ok("bookies", seen)


def _reached(answers: dict[str, BookieInfo | BookKeeperError]) -> Finding:
    check = "bookies reached"
    # A bookie that refuses to tell the sizes of its disks was reached.
    failed = {
        bookie_id: answer
        for bookie_id, answer in answers.items()
        if isinstance(answer, BookKeeperError) and not isinstance(answer, UnauthorizedError | RequestRefusedError)
    }
    if not failed:
        return ok(check, f"{len(answers)} of {len(answers)}")
    told = "; ".join(f"{bookie_id} ({error.message})" for bookie_id, error in failed.items())
    # A bookie that is merely away says nothing about keys or passwords.
    kinds = {TlsError if isinstance(error, TlsError) else type(error) for error in failed.values()}
    remedy = next((_REMEDIES[kind] for kind in _REMEDIES if kind in kinds), _AWAY)
    return problem(check, f"{len(failed)} of {len(answers)} do not answer from here: {told}", remedy)


def _disks(answers: dict[str, BookieInfo | BookKeeperError]) -> Finding:
    known = {
        bookie_id: 1 - answer.free_disk_bytes / answer.total_disk_bytes
        for bookie_id, answer in answers.items()
        if not isinstance(answer, BookKeeperError) and answer.total_disk_bytes and answer.free_disk_bytes is not None
    }
    if any(isinstance(answer, UnauthorizedError) for answer in answers.values()):
        return warning(
            "bookies' disks",
            "bookies refuse to tell this client the sizes of their disks",
            "if they refuse reads and writes, too, it needs TLS or a login (--client-conf); else give it the right "
            "admin (docs/security.md)",
        )
    if not known:
        return warning(
            "bookies' disks", "no bookie reported how full its disks are", "check the disks on the bookies' hosts"
        )
    full = [f"{bookie_id} {used:.0%}" for bookie_id, used in known.items() if used > _FULL_SHARE]
    if not full:
        return ok("bookies' disks", f"at most {max(known.values()):.0%} used")
    return warning(
        "bookies' disks",
        f"nearly full: {', '.join(full)}",
        "free disk space (retention, bkctl log gc) or add bookies: at diskUsageThreshold, 95 %, they refuse writes",
    )


def _listens(server: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
