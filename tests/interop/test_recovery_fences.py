"""Our recovery fences with every read that decides where a ledger ends, on either kind of bookies (scenario C1)."""

from __future__ import annotations

import contextlib

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.codes import LAST_ENTRY, DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.wire_v2 import OpV2, header_int
from tests.interop.matrix import answer_of, store_on_one_bookie
from tests.interop.sides import PASSWORD
from tests.support.request_tap import RequestTap

KEY = PASSWORD.encode()
#: Java's BookieProtocol.EFENCED.
FENCED = 104


def late_add(bookie_id: str, ledger_id: int, entry_id: int) -> int:
    """What the bookie answers to the writer's add of ``entry_id``, which comes late."""
    entry = pack_entry(ledger_id, entry_id, -1, 4, b"late", digest_function(DigestType.CRC32C, KEY))
    answer = answer_of(bookie_id, frame(header_int(OpV2.ADD).to_bytes(4, "big") + master_key(KEY) + entry))
    return int.from_bytes(answer[4:8], "big", signed=True)


@pytest.mark.parametrize("wire", [2, 3])
def test_c1_a_bookie_that_the_fence_did_not_reach_is_fenced_by_the_reads(
    bookies_uri: str, monkeypatch: pytest.MonkeyPatch, wire: int
) -> None:
    with contextlib.ExitStack() as stack, BlockingClient(bookies_uri) as client:
        writer = client.create(password=KEY)
        ledger_id = writer.ledger_id
        ((_, ensemble),) = [(one.first_entry_id, one.ensemble) for one in writer.metadata.segments]
        writer.abandon()
        # As its writer leaves it that died with entry 0 on one bookie of three.
        store_on_one_bookie(ensemble[1], ledger_id, 0, -1, 7, b"entry 0")
        taps: dict[str, RequestTap] = {}
        for bookie_id in ensemble:
            host, _, port = bookie_id.rpartition(":")
            lost = bookie_id == ensemble[2]
            tap = RequestTap((host, int(port)), lambda read, lost=lost: lost and read.entry_id == LAST_ENTRY)
            taps[bookie_id] = stack.enter_context(tap)

        async def through_tap(_: ClusterServices, bookie_id: str) -> tuple[str, int]:
            return taps[bookie_id].address

        config = ClientConfig(use_v2_wire_protocol=wire == 2, read_timeout_ms=5_000)
        recoverer = stack.enter_context(BlockingClient(bookies_uri, config))
        with monkeypatch.context() as patch:
            patch.setattr(ClusterServices, "address", through_tap)
            closed = recoverer.recover_and_open(ledger_id, KEY).metadata
        assert closed.state is LedgerState.CLOSED
        for bookie_id in ensemble:
            reads = [read for read in taps[bookie_id].reads if read.ledger_id == ledger_id]
            assert {read.entry_id for read in reads} >= {LAST_ENTRY, 0}, bookie_id
            assert all(read.fences for read in reads), (bookie_id, reads)
            assert late_add(bookie_id, ledger_id, closed.last_entry_id + 1) == FENCED
