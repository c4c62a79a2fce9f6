"""The writer's window against a plain model of it."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.ledger.add_window import PendingAdds
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.add_frames import EntryPackager
from tests.support.wire import frames

PACKAGER = EntryPackager(1, DigestType.DUMMY, b"")


def entry_ids(views: list[memoryview], count: int) -> list[int]:
    if not views:
        assert count == 0
        return []
    found = [int.from_bytes(body[32:40], "big") for body in frames(bytes(view) for view in views)]
    assert len(found) == count
    return found


class Model:
    """A plain model of PendingAdds, entry by entry."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.state: dict[tuple[int, int], str] = {}
        self.lac = self.first = self.next = 0

    def column(self, index: int, *states: str) -> list[int]:
        return sorted(entry for (entry, k), state in self.state.items() if k == index and state in states)


@pytest.mark.parametrize("quorum", [Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(4, 2, 1)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_against_the_model(quorum: Quorum, seed: int) -> None:
    random_ = random.Random(f"{seed} {quorum}")
    size = quorum.ensemble_size
    window, model = PendingAdds(quorum, 0), Model(quorum)
    state, lac, pushed, length = model.state, -1, -1, 0
    lengths: list[int] = []
    live = [True] * size

    for _ in range(250):
        step = random_.random()
        index = random_.randrange(size)
        some = [random_.randint(max(0, window.first_entry_id - 3), pushed + 3) for _ in range(random_.randint(0, 9))]
        if step < 0.25:
            sizes = [random_.randint(0, 3) for _ in range(random_.choice([1, 2, 30]))]
            added = PACKAGER.package(pushed + 1, lac, length, Payloads.of([bytes(n) for n in sizes]))
            sent = [entry_ids(*frames_and_count) for frames_and_count in window.append(added, live)]
            for offset in range(len(sizes)):
                entry = pushed + 1 + offset
                length += sizes[offset]
                lengths.append(length)
                for k in range(size):
                    if quorum.stores(k, entry):
                        state[entry, k] = "owed" if live[k] else ""
                    assert (entry in sent[k]) == (quorum.stores(k, entry) and live[k])
            pushed += len(sizes)
        elif step < 0.6:
            if random_.random() < 0.3:  # a bookie answers in the order of the requests
                first = random_.randint(max(0, window.first_entry_id - 3), pushed + 3)
                some = list(range(first, first + random_.randint(9, 20)))
            window.on_held(index, np.array(some, np.int64))
            for entry in some:
                if (entry, index) in state and entry >= window.first_entry_id:
                    state[entry, index] = "held"
        elif step < 0.7 and live[index]:
            window.on_refused(index, np.array(some, np.int64))
            for entry in some:
                if entry >= window.first_entry_id and state.get((entry, index)) == "owed":
                    state[entry, index] = "refused"
        elif step < 0.8:
            refused = [entry for entry in model.column(index, "refused") if entry >= window.first_entry_id]
            assert entry_ids(*window.take_refused(index)) == refused
            for entry in refused:
                state[entry, index] = "owed"
        elif step < 0.85:
            window.give_up(index)
            live[index] = False
            for entry in model.column(index, "owed", "refused"):
                state[entry, index] = ""
        elif step < 0.9:
            live[index] = True
            expected = [entry for entry in range(lac + 1, pushed + 1) if quorum.stores(index, entry)]
            assert entry_ids(*window.replace(index, lac + 1)) == expected
            for entry in model.column(index, "owed", "refused"):
                state[entry, index] = ""
            for entry in expected:
                state[entry, index] = "owed"
        else:
            complete = window.complete_through(lac)
            expected_end = lac
            while expected_end < pushed and (
                sum(state.get((expected_end + 1, k)) == "held" for k in range(size)) >= quorum.ack_quorum_size
            ):
                expected_end += 1
            assert complete == expected_end
            if complete > lac:
                assert window.length_at(complete) == lengths[complete]
            lac = complete
            window.release(lac)
            first = window.first_entry_id
            owed = {entry for (entry, _), one in state.items() if one in ("owed", "refused")}
            while first <= lac and first not in owed:
                first += 1
            assert window.first_entry_id == first
        first = window.first_entry_id
        assert len(window) == pushed + 1 - first
        for k in range(size):
            assert window.owed[k] == len([one for one in model.column(k, "owed", "refused") if one >= first])
        assert first == lac + 1 or first not in (entry for entry in range(first) if entry)


def test_a_window_that_moves_for_long_stays_small() -> None:
    window = PendingAdds(Quorum(3, 3, 2), 0)

    def move(entries: range) -> int:
        """Let ten entries be under way. Return the bytes in use afterwards."""
        for entry in entries:
            window.append(PACKAGER.package(entry, -1, entry, Payloads.of([b"x"])), [True] * 3)
            done = np.array([entry - 10], np.int64)
            for index in range(3):
                window.on_held(index, done)
            lac = window.complete_through(window.first_entry_id - 1)
            window.release(lac)
        assert len(window) == 10
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = move(range(1_000))
        # A row takes 15 bytes, a chunk hundreds.
        assert move(range(1_000, 4_000)) < before + 15_000
    finally:
        tracemalloc.stop()


def test_a_recovery_begins_anywhere() -> None:
    window = PendingAdds(Quorum(3, 2, 2), 2**40)
    window.append(PACKAGER.package(2**40, -1, 10, Payloads.of([b"ab", b"c"])), [True] * 3)
    for index in range(3):
        window.on_held(index, np.array([2**40, 2**40 + 1]))
    assert window.complete_through(2**40 - 1) == 2**40 + 1
    assert window.length_at(2**40) == 12
