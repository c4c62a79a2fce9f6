"""Checks of ``bkctl doctor`` that ask the cluster: ZooKeeper, clocks, bookies and their disks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from bk_spark.bkctl.doctor.findings import Finding, ok, problem, warning
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.logins import Logins
from bk_spark.bookie.connection.pool import ConnectionPool, connects_by
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.placement.registry import RegisteredBookie
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri

_TIMEOUT_MS: Final = 5_000
_METADATA_TIMEOUT_MS: Final = 10_000
_PROBE_TIMEOUT_S: Final = 3.0
#: Bookies asked in parallel.
_AT_ONCE: Final = 64
#: The default ensemble size.
_ENOUGH_BOOKIES: Final = 3
#: Bookies stop accepting writes at 95 % (diskUsageThreshold).
_FULL_SHARE: Final = 0.90


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


@dataclass(frozen=True, slots=True)
class _Asked:
    bookie: RegisteredBookie
    error: str | None = None
    used: float | None = None


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
    asked = asyncio.run(_ask_all(registered, client.config))
    return [_registered(registered), _reached(asked), _disks(asked)]


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


def _reached(asked: list[_Asked]) -> Finding:
    away = [f"{one.bookie.bookie_id} ({one.error})" for one in asked if one.error is not None]
    if not away:
        return ok("bookies reached", f"{len(asked)} of {len(asked)}")
    return problem(
        "bookies reached",
        f"{len(away)} of {len(asked)} do not answer from here: {'; '.join(away)}",
        "check that they run, and that this machine can reach the address they advertise (advertisedAddress, firewall)",
    )


def _disks(asked: list[_Asked]) -> Finding:
    known = {one.bookie.bookie_id: one.used for one in asked if one.used is not None}
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


async def _ask_all(registered: tuple[RegisteredBookie, ...], config: ClientConfig) -> list[_Asked]:
    addresses = {one.bookie_id: one.address for one in registered}
    slots = asyncio.Semaphore(_AT_ONCE)

    async def resolve(bookie_id: str) -> tuple[str, int]:
        address = addresses[bookie_id]
        if address is None:
            raise BookieUnavailableError("registered without an address")
        return address

    tls = ClientTls(config) if config.tls_enabled else None
    pool = ConnectionPool(connects_by(BookieConnectionV3, resolve, tls, Logins.of(config)), config)

    async def ask(bookie: RegisteredBookie) -> _Asked:
        asked = _Asked(bookie)
        try:
            async with slots, asyncio.timeout(config.read_timeout_ms / 1000):
                info = await (await pool.get(bookie.bookie_id)).bookie_info()
        except TimeoutError:
            return replace(asked, error="no answer in time")
        except BookKeeperError as error:
            return replace(asked, error=error.message)
        if not info.total_disk_bytes or info.free_disk_bytes is None:
            return asked
        return replace(asked, used=1 - info.free_disk_bytes / info.total_disk_bytes)

    try:
        return await asyncio.gather(*map(ask, registered))
    finally:
        await pool.close()


def _listens(server: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
