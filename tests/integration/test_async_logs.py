"""Logs with asyncio on real bookies."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pyarrow as pa
import pytest

import bk_spark
from bk_spark import AsyncBookKeeper, AsyncLog, errors
from bk_spark.log.aio.reader import Performer
from bk_spark.log.core.readers.reader_actions import Arm, Armed, AwaitChange, Changed, TimeIsUp
from bk_spark.log.reader import LogBlock
from bookie_server.local import LocalCluster

pytestmark = pytest.mark.integration


@asynccontextmanager
async def raw_log(cluster: LocalCluster) -> AsyncIterator[tuple[AsyncBookKeeper, AsyncLog]]:
    config = {"explicitLacInterval": "100"}
    async with await bk_spark.connect_async(cluster.metadata_service_uri, password="secret", config=config) as bk:
        yield bk, await bk.create_log(f"async-{uuid.uuid4().hex[:12]}")


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))  # type: ignore[arg-type]


def payloads(blocks: list[LogBlock]) -> list[bytes]:
    return [bytes(payload) for block in blocks for payload in block.payloads]


def test_append_read_and_scan(cluster: LocalCluster) -> None:
    async def test() -> None:
        async with raw_log(cluster) as (bk, log):
            async with await log.open_writer(roll_entries=10) as writer:
                assert await writer.append(b"0") == 0
                assert await writer.append_many([b"%d" % number for number in range(1, 35)]) == range(1, 35)
                assert await writer.flush() == writer.acknowledged_offset == writer.next_offset == 35
            expected = [b"%d" % number for number in range(35)]
            assert (await log.snapshot()).next_offset == await log.readable_end() == 35
            assert payloads([block async for block in log.read(0, 35)]) == expected
            assert payloads([block async for block in log.read(7, 23)]) == expected[7:23]
            scan = await log.scan(["value", "offset"], start=30)
            assert scan.offsets == range(30, 35)
            table = await scan.to_arrow()
            assert table["value"].to_pylist() == expected[30:]
            assert pa.Table.from_batches([batch async for batch in scan]).equals(table)
            assert len(await scan.to_pandas()) == (await scan.to_polars()).height == 5
            again = await bk.log(log.name)
            assert (await again.write(pa.table({"value": ["more"]}), txn_app_id="a", txn_version=0)).start_offset == 35
            await bk.delete_log(log.name)
            with pytest.raises(errors.NoSuchLogError):
                await bk.log(log.name)

    run(test)


def test_a_follower_sees_entries_while_the_tail_is_open_and_after_it_rolls(cluster: LocalCluster) -> None:
    async def test() -> None:
        async with raw_log(cluster) as (_, log):
            seen: list[bytes] = []
            first_seen = asyncio.Event()

            async def follow() -> None:
                async with aclosing(log.follow(0)) as blocks:
                    async for block in blocks:
                        seen.extend(payloads([block]))
                        first_seen.set()
                        if seen[-1] == b"last":
                            return

            follower = asyncio.create_task(follow())
            async with await log.open_writer(roll_entries=5) as writer:
                await writer.append_many([b"%d" % number for number in range(3)])
                await writer.flush()
                # The writer does nothing more: the follower waits for the confirmation in the open tail.
                await first_seen.wait()
                await writer.append_many([b"%d" % number for number in range(3, 20)])
                await writer.append(b"last")
                await writer.flush()
                await follower
            assert seen == [*(b"%d" % number for number in range(20)), b"last"]

    run(test)


def test_followers_end_when_nothing_comes_and_when_they_are_cancelled(cluster: LocalCluster) -> None:
    async def test() -> None:
        async with raw_log(cluster) as (_, log):
            assert [block async for block in log.follow(0, max_wait_ms=200)] == []
            await log.write(pa.table({"value": ["a", "b"]}))
            assert payloads([block async for block in log.follow(1, max_wait_ms=200)]) == [b"b"]

            reached = asyncio.Semaphore(0)

            async def endless() -> None:
                async for _ in log.follow(2):
                    reached.release()

            async with await log.open_writer() as writer:
                await writer.append(b"c")
                await writer.flush()
                followers = [asyncio.create_task(endless()) for _ in range(20)]
                for _ in followers[:10]:
                    await reached.acquire()
                for follower in followers:
                    follower.cancel()
                found = await asyncio.gather(*followers, return_exceptions=True)
            assert [one for one in found if not isinstance(one, asyncio.CancelledError)] == []

    run(test)


def test_a_change_is_reported_though_no_time_is_left(cluster: LocalCluster) -> None:
    """As to a blocking reader: who does not wait still learns what has come since it armed its watch."""

    async def test() -> None:
        async with raw_log(cluster) as (_, log):
            performer = Performer(log.blocking.parts)
            no_time_left = AwaitChange(until_ms=0.0)
            assert isinstance(await performer.perform_event(Arm()), Armed)
            assert isinstance(await performer.perform_event(no_time_left), TimeIsUp)
            await log.write(pa.table({"value": ["a"]}))
            assert isinstance(await performer.perform_event(AwaitChange(until_ms=None)), Changed)
            assert isinstance(await performer.perform_event(no_time_left), Changed)

    run(test)


def test_many_logs_are_followed_on_one_loop(cluster: LocalCluster) -> None:
    """More than there are threads for blocking calls: a follower that waits takes none."""

    async def test() -> None:
        async with raw_log(cluster) as (_, log):
            count = 60
            arrived = asyncio.Semaphore(0)

            async def follow() -> list[bytes]:
                found = []
                async with aclosing(log.follow(0)) as blocks:
                    async for block in blocks:
                        found += payloads([block])
                        arrived.release()
                        if found[-1] == b"end":
                            break
                return found

            followers = [asyncio.create_task(follow()) for _ in range(count)]
            await log.write(pa.table({"value": ["begin"]}))
            for _ in range(count):
                await arrived.acquire()
            await log.write(pa.table({"value": ["end"]}))
            assert await asyncio.gather(*followers) == [[b"begin", b"end"]] * count

    run(test)


def test_ranges_that_are_not_there(cluster: LocalCluster) -> None:
    async def test() -> None:
        async with raw_log(cluster) as (_, log):
            with pytest.raises(errors.LogRangeGoneError):
                _ = [block async for block in log.read(0, 1)]
            with pytest.raises(errors.InvalidArgumentError, match="max_wait_ms must not be negative"):
                _ = [block async for block in log.follow(0, max_wait_ms=-1)]
            with pytest.raises(errors.InvalidArgumentError, match="no column 'nothing'"):
                await log.scan(["nothing"])

    run(test)


def test_a_closed_connection_ends_what_waits(cluster: LocalCluster) -> None:
    async def test() -> None:
        async with raw_log(cluster) as (bk, log):
            async with await log.open_writer() as writer:
                await writer.append(b"first")
                await writer.flush()
                waiting = asyncio.Event()

                async def follow() -> None:
                    async for _ in log.follow(0):
                        waiting.set()

                follower = asyncio.create_task(follow())
                await waiting.wait()
                await writer.abandon()
            await bk.close()
            with pytest.raises(errors.BookKeeperError):
                await follower

    run(test)


def test_a_cancelled_scan_leaves_no_thread(cluster: LocalCluster) -> None:
    async def test() -> None:
        async with raw_log(cluster) as (_, log):
            await log.write(pa.table({"value": [bytes(1000)] * 20_000}))
            started = asyncio.Event()

            async def scan() -> None:
                async with aclosing((await log.scan(buffer_bytes=1 << 20)).batches()) as batches:
                    async for _ in batches:
                        started.set()
                        await asyncio.Event().wait()

            scanner = asyncio.create_task(scan())
            await started.wait()
            scanner.cancel()
            with pytest.raises(asyncio.CancelledError):
                await scanner
        assert not [thread for thread in threading.enumerate() if thread.name == "bk-scan"]

    run(test)
