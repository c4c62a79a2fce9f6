"""The protocol's known bugs, step by step, with the state machines and model bookies."""

from __future__ import annotations

import numpy as np

from bk_spark.protocol import wire_v2
from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.digest import digest_function, master_key
from bk_spark.protocol.entry import Entry, verify_entry
from bk_spark.protocol.errors import LedgerFencedError
from bk_spark.protocol.ledger_metadata import LedgerState
from bk_spark.protocol.payloads import Payloads
from bk_spark.protocol.quorum import Answer
from bk_spark.protocol.recovery import EndFound, FencingRead, LedgerRecovery, StartWriteBack, WriteBack
from bk_spark.protocol.wire_v2 import AddAnswers, ReadAnswer, parse_answers
from bk_spark.protocol.writer import SendAdds
from tests.simulation.model import ModelBookie, World
from tests.support.ledgers import LEDGER, PASSWORD, WriterUnderTest, ledger, payload_of
from tests.support.wire import frames

DIGEST = digest_function(DigestType.CRC32C, PASSWORD)


class Stage:
    """Three bookies, a writer whose adds arrive when told, a recoverer whose requests do."""

    def __init__(self) -> None:
        self.world = World(0)
        self.bookies = {name: ModelBookie(self.world, name) for name in ("b1", "b2", "b3")}
        self.writer = WriterUnderTest()
        self.recovery = LedgerRecovery(LEDGER, ledger(state=LedgerState.IN_RECOVERY))
        self.recovery.take_actions()
        self.end: int | None = None
        self._adds: dict[tuple[str, int], bytes] = {}

    def add(self, entry_id: int) -> None:
        """The writer adds an entry; nothing arrives yet."""
        assert self.writer.machine.add(Payloads.of([payload_of(entry_id)])) == entry_id
        for action in self.writer.machine.take_actions():
            assert isinstance(action, SendAdds)
            self._adds[action.bookie_id, entry_id] = b"".join(action.frames)

    def add_arrives(self, bookie_id: str, entry_id: int) -> Code:
        """… at one bookie, and its answer at the writer."""
        (answer,) = parse_answers(frames(self._ask(bookie_id, self._adds[bookie_id, entry_id])))
        assert isinstance(answer, AddAnswers)
        self.writer.machine.on_add_answers(bookie_id, answer.entry_ids, answer.codes)
        self.writer.take()
        return Code(int(answer.codes[0]))

    def fence(self, bookie_id: str) -> None:
        self.recovery.on_fence_answer(bookie_id, *self._read(bookie_id, LAST_ENTRY))
        self._take()

    def read(self, bookie_id: str, entry_id: int) -> Answer:
        answer, entry = self._read(bookie_id, entry_id)
        self.recovery.on_read_answer(bookie_id, entry_id, answer, entry)
        self._take()
        return answer

    def _take(self) -> None:
        for action in self.recovery.take_actions():
            match action:
                case FencingRead() | StartWriteBack():
                    pass
                case EndFound(last_entry_id):
                    self.end = last_entry_id
                case WriteBack():
                    self.recovery.on_written_back(99)
                case _:
                    raise AssertionError(action)

    def _read(self, bookie_id: str, entry_id: int) -> tuple[Answer, Entry | None]:
        key = master_key(PASSWORD)
        request = wire_v2.read_requests(LEDGER, np.array([entry_id]), FlagV2.FENCING, key)
        (answer,) = parse_answers(frames(self._ask(bookie_id, request)))
        assert isinstance(answer, ReadAnswer)
        if answer.code is Code.NO_ENTRY:
            return Answer.ABSENT, None
        wanted = None if entry_id == LAST_ENTRY else entry_id
        return Answer.PRESENT, verify_entry(answer.stored, LEDGER, wanted, DigestType.CRC32C, DIGEST)

    def _ask(self, bookie_id: str, request: bytes) -> bytes:
        answers: list[bytes | None] = []
        self.bookies[bookie_id].send(request, answers.append)
        assert self.world.run(100)
        (answer,) = answers
        assert answer is not None
        return answer


def test_c1_a_fence_is_lost_and_an_add_arrives_after_the_recovery_read() -> None:
    stage = Stage()
    stage.add(0)
    assert stage.add_arrives("b2", 0) is Code.OK
    stage.fence("b1")
    stage.fence("b2")  # the fence to b3 is lost
    assert stage.read("b1", 0) is Answer.ABSENT
    assert stage.read("b3", 0) is Answer.ABSENT
    assert stage.end == -1
    assert stage.add_arrives("b3", 0) is Code.FENCED
    assert stage.writer.acknowledged == []
    assert isinstance(stage.writer.machine.error, LedgerFencedError)


def test_c2_the_fence_arrives_after_the_recovery_read() -> None:
    stage = Stage()
    stage.add(0)
    stage.add_arrives("b2", 0)
    stage.fence("b1")
    stage.fence("b2")
    stage.read("b1", 0)
    stage.read("b3", 0)
    stage.fence("b3")
    assert stage.end == -1
    assert stage.add_arrives("b3", 0) is Code.FENCED
    assert stage.writer.acknowledged == []


def test_c4_a_bookie_crashes_after_it_was_fenced() -> None:
    stage = Stage()
    stage.fence("b1")
    stage.fence("b2")
    stage.bookies["b2"].crash()
    stage.bookies["b2"].restart()
    stage.add(0)
    assert stage.add_arrives("b3", 0) is Code.OK
    assert stage.add_arrives("b2", 0) is Code.FENCED
    assert stage.writer.acknowledged == []


def test_c11_one_recovery_closes_before_an_entry_that_another_wrote_back() -> None:
    """Both are right: entry 1 was never acknowledged. Who closes first decides (see the histories)."""
    stage = Stage()
    stage.add(0)
    stage.add(1)
    for bookie_id in ("b1", "b2", "b3"):
        stage.add_arrives(bookie_id, 0)
    stage.add_arrives("b1", 1)
    for bookie_id in ("b1", "b2"):
        stage.fence(bookie_id)
    stage.read("b1", 0)
    assert stage.read("b1", 1) is Answer.PRESENT
    for bookie_id in ("b2", "b3"):
        stage.read(bookie_id, 2)
    assert stage.end == 1
    short = LedgerRecovery(LEDGER, ledger(state=LedgerState.IN_RECOVERY))
    for bookie_id in ("b2", "b3"):
        short.on_fence_answer(bookie_id, *stage._read(bookie_id, LAST_ENTRY))
    short.on_read_answer("b2", 0, *stage._read("b2", 0))
    for bookie_id in ("b2", "b3"):
        short.on_read_answer(bookie_id, 1, *stage._read(bookie_id, 1))
    assert EndFound(0) in short.take_actions()
    assert stage.writer.acknowledged == [0]
