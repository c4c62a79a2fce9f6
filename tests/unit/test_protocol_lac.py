"""Reading the last add confirmed: coverage, silence, floors, proofs."""

from __future__ import annotations

import itertools

import pytest

from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry, pack_lac
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError, EntryUnknownError
from bk_spark.protocol.ledger.reading.lac import LacRead
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.read_actions import AskLac, LacTold, RequestFailed
from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, Quorum, covered
from tests.support.ledgers import LEDGER, PASSWORD, ledger

KEY = LedgerKey(LEDGER, DigestType.CRC32C, digest_function(DigestType.CRC32C, PASSWORD))

#: What a bookie answers: code, explicit LAC, last entry.
Told = tuple[Code, bytes | None, bytes | None]
ABSENT: Told = (Code.NO_ENTRY, None, None)
IO_ERROR: Told = (Code.IO_ERROR, None, None)


def present(lac: int) -> Told:
    return Code.OK, None, pack_entry(LEDGER, lac + 1, lac, 0, b"payload", KEY.digest)


def explicit(lac: int) -> bytes:
    return pack_lac(LEDGER, lac, KEY.digest)


class ReadUnderTest:
    def __init__(self, metadata: LedgerMetadata) -> None:
        self.machine = LacRead(KEY, metadata, timeout_ms=5_000)
        *asked, timer = self.machine.take_actions()
        self.bookie_ids = tuple(action.bookie_id for action in asked if isinstance(action, AskLac))
        assert isinstance(timer, StartTimer)
        assert timer.after_ms == 5_000
        self._timer = timer

    def tell(self, bookie_id: str, told: Told) -> None:
        self.machine.handle(LacTold(bookie_id, *told))

    def broken(self, bookie_id: str, reason: str) -> None:
        self.machine.handle(RequestFailed(bookie_id, BookieUnavailableError(reason)))

    def time_out(self) -> None:
        self.machine.handle(TimerFired(self._timer.name))

    @property
    def over(self) -> bool:
        return self.machine.outcome is not None

    @property
    def result(self) -> int | None:
        end = self.machine.outcome
        return end.result if isinstance(end, Succeeded) else None

    @property
    def error(self) -> BookKeeperError | None:
        end = self.machine.outcome
        assert not isinstance(end, EndedBy) or isinstance(end.error, BookKeeperError)
        return end.error if isinstance(end, EndedBy) else None  # type: ignore[return-value]


def test_a_hanging_bookie_delays_nothing() -> None:
    read = ReadUnderTest(ledger())
    assert read.bookie_ids == ("b1", "b2", "b3")
    read.tell("b3", present(4))
    assert not read.over
    read.tell("b1", present(7))
    assert (read.result, read.error) == (7, None)
    # Too late to count.
    read.tell("b2", present(9))
    assert read.result == 7


def test_absent_answers_cover_too() -> None:
    read = ReadUnderTest(ledger())
    read.tell("b1", ABSENT)
    read.tell("b2", ABSENT)
    assert read.result == -1


def test_never_below_the_start_of_the_segment() -> None:
    read = ReadUnderTest(ledger(Quorum(2, 2, 2), (0, "b1 b2"), (40, "b3 b2")))
    assert read.bookie_ids == ("b3", "b2")
    read.tell("b2", present(12))
    assert read.result == 39


def test_too_many_unknown_is_an_error_that_names_them() -> None:
    read = ReadUnderTest(ledger())
    read.broken("b1", "broke")
    read.tell("b3", present(5))
    assert not read.over
    read.tell("b2", IO_ERROR)
    assert read.result is None
    assert isinstance(read.error, EntryUnknownError)
    assert "b1 broke; b2 answered IO_ERROR" in str(read.error)
    assert "b3" not in str(read.error)
    assert read.error.retriable


def test_an_explicit_lac_beside_an_error_counts_but_does_not_cover() -> None:
    read = ReadUnderTest(ledger())
    read.tell("b1", (Code.IO_ERROR, explicit(6), None))
    read.tell("b2", ABSENT)
    assert not read.over
    read.tell("b3", ABSENT)
    assert read.result == 6


def test_the_first_answer_of_a_bookie_counts() -> None:
    read = ReadUnderTest(ledger())
    read.tell("b1", IO_ERROR)
    read.tell("b1", present(3))
    read.tell("b2", present(1))
    assert not read.over


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 2, 1), Quorum(3, 1, 1)], ids=str)
def test_over_exactly_when_covered_or_hopeless(quorum: Quorum) -> None:
    """All answers in all orders: the result comes with the answer that completes the coverage, no later."""
    size = quorum.ensemble_size
    meanings = {present(3): Answer.PRESENT, ABSENT: Answer.ABSENT, IO_ERROR: Answer.UNKNOWN}
    for answers in itertools.product(meanings, repeat=size):
        for order in itertools.permutations(range(size)):
            read = ReadUnderTest(ledger(quorum))
            heard = [Answer.UNHEARD] * size
            for index in order:
                read.tell(read.bookie_ids[index], answers[index])
                heard[index] = meanings[answers[index]]
                assert (read.result is not None) is covered(quorum, heard)
                if read.over:
                    break
            assert read.over
            assert (read.error is None) is covered(quorum, heard)


def test_bookies_that_do_not_answer_in_time_could_not_tell() -> None:
    read = ReadUnderTest(ledger())
    read.tell("b2", present(5))
    read.time_out()
    assert "b1 did not answer in time; b3 did not answer in time" in str(read.error)
    assert "b2" not in str(read.error)


@pytest.mark.parametrize("spoiled", ["last entry", "explicit LAC"])
def test_a_wrong_digest_is_no_answer_and_its_lac_does_not_count(spoiled: str) -> None:
    """What has a right digest beside it counts."""

    def corrupted(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    last, packet = pack_entry(LEDGER, 8, 7, 0, b"payload", KEY.digest), explicit(6)
    read = ReadUnderTest(ledger(Quorum(1, 1, 1)))
    if spoiled == "last entry":
        read.tell("b1", (Code.OK, packet, corrupted(last)))
    else:
        read.tell("b1", (Code.OK, corrupted(packet), last))
    assert f"b1 {spoiled}: " in str(read.error)
    for one, other in (((Code.OK, corrupted(packet), None), ABSENT), ((Code.OK, None, corrupted(last)), ABSENT)):
        read = ReadUnderTest(ledger())
        read.tell("b1", one)
        read.tell("b2", other)
        read.tell("b3", other)
        assert read.result == -1


def test_the_higher_of_the_explicit_lac_and_the_last_entrys_counts() -> None:
    for packet, last, found in ((9, 4, 9), (3, 4, 4)):
        read = ReadUnderTest(ledger(Quorum(1, 1, 1)))
        read.tell("b1", (Code.OK, explicit(packet), present(last)[2]))
        assert read.result == found
