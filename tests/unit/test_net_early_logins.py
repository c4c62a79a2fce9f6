"""Logins that begin in clear before START_TLS. Apache's client does so if its thread is interrupted as it connects."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bk_spark.protocol.wire.auth_frames import DISABLED, AuthMessage
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.start_tls import start_tls_request
from bk_spark.protocol.wire.v3.wire_v3 import parse_response
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.entrance.awaited import Awaited
from bookie_server.net.common.limits import NetConfig
from tests.support.bookie import add_frame
from tests.support.front import HeldBookie, front, reads, run, until, v3_add
from tests.support.instances import instances
from tests.unit.test_net_access import (
    FIRST_V2,
    FIRST_V3,
    NO_BEGINNINGS,
    Talk,
    access_by_sasl,
    early,
    finish_login,
    in_bytes,
)
from tests.unit.test_net_tls import front_tls

_PAUSE = "bookie_server.net.native.server.LOGIN_ALONE_S"


@pytest.fixture
def sasl(tmp_path: Path) -> FrontAccess:
    return access_by_sasl(tmp_path)


@pytest.mark.parametrize("required", [False, True], ids=["possible", "required"])
@pytest.mark.parametrize("apart", [False, True], ids=["together", "in pieces"])
@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_a_login_may_begin_in_clear_before_start_tls(
    sasl: FrontAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, v2: bool, apart: bool, required: bool
) -> None:
    monkeypatch.setattr(_PAUSE, 3600.0)

    async def test() -> None:
        bookie, tls = HeldBookie(), front_tls(tmp_path, required=required)
        async with front(NetConfig(), bookie, tls=tls, access=sasl) as served:
            sent = (FIRST_V2 if v2 else FIRST_V3) + start_tls_request()
            async with early(served, tmp_path, in_bytes(sent) if apart else [sent], []) as peer:
                await finish_login(peer, bookie, v2=v2)
            assert (tls.failed_handshakes, tls.refused_connections, served.server.failed_logins) == (0, 0, 0)

    run(test)


def test_nothing_else_may_come_in_clear_before_start_tls(
    sasl: FrontAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = instances(monkeypatch, Awaited)
    before = [*NO_BEGINNINGS, add_frame(1, 0)]

    async def test() -> None:
        bookie, tls = HeldBookie(), front_tls(tmp_path, required=True)
        async with front(NetConfig(), bookie, tls=tls, access=sasl) as served:
            granted, _ = made
            for data in before:
                await (await served.connect()).send(data + start_tls_request())
            await until(lambda: len(granted) + tls.refused_connections == len(before))
            assert (len(granted), bookie.entries, bookie.reads) == (0, 0, 0)

    run(test)


def test_start_tls_is_not_granted_behind_a_login_where_nobody_logs_in(tmp_path: Path) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            peer = await served.connect()
            await peer.send(FIRST_V3)
            assert await Talk(peer, v2=False).hear() == AuthMessage(DISABLED, b"")

    run(test)


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_logins_in_clear_where_tls_is_possible(sasl: FrontAccess, tmp_path: Path, v2: bool) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie, tls=front_tls(tmp_path), access=sasl) as served:

            async def log_in() -> None:
                peer = await served.connect()
                await Talk(peer, v2=v2).log_in()
                request = reads((1, 1)) if v2 else v3_add(1)
                await peer.send(request[:-1])
                await asyncio.sleep(0.05)  # the last byte is received alone
                await peer.send(request[-1:])

            await asyncio.gather(*(log_in() for _ in range(20)))
            await until(lambda: bookie.reads + bookie.entries == 20)

    run(test)


def test_a_login_in_clear_is_refused_where_tls_is_required(sasl: FrontAccess, tmp_path: Path) -> None:
    async def test() -> None:
        tls = front_tls(tmp_path, required=True)
        async with front(NetConfig(), HeldBookie(), tls=tls, access=sasl) as served:
            peer = await served.connect()
            await peer.send(FIRST_V3)
            assert parse_response(await peer.body()).status == pb.EUA
            assert tls.refused_connections == 1

    run(test)


def test_who_leaves_after_the_beginning_of_a_login_is_forgotten(
    sasl: FrontAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_PAUSE, 3600.0)
    made = instances(monkeypatch, Awaited)

    async def test() -> None:
        config = NetConfig(max_connections=4, idle_before_eviction_ms=0)
        async with front(config, HeldBookie(), tls=front_tls(tmp_path), access=sasl) as served:
            _, logins = made
            peer = await served.connect()
            await peer.send(FIRST_V3)
            await until(lambda: len(logins) == 1)
            peer.socket.close()
            await until(lambda: served.server.connection_count == 0)
            for _ in range(12):  # others take their places
                await (await served.connect()).send(FIRST_V3)
            await until(lambda: served.server.evicted_connections == 8)
            await until(lambda: len(logins) == 4)

    run(test)
