"""The bookie of the protocol's model world answers like a real one, and the comparison finds models that do not."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from bk_spark.protocol.wire import wire_v2, wire_v3
from bookie_server.local import LocalCluster
from tests.simulation.bytes_cache import AddSeen
from tests.simulation.events import Answer, Command, Effect, Request, Way
from tests.simulation.servers import ModelBookie
from tests.support.bookie import BookieProcess
from tests.support.bookie_operations import Comparison, DifferenceError
from tests.support.served_bookie import ServedBookie
from tests.support.wire import frames

#: ``BOOKIE_MODEL_SEQUENCES=1000`` tries more.
SEQUENCES = int(os.environ.get("BOOKIE_MODEL_SEQUENCES", "60"))
STEPS = 15

_ids = itertools.count(20_000)


@pytest.fixture
def bookie(zk_only: LocalCluster, tmp_path: Path) -> Iterator[BookieProcess]:
    process = BookieProcess(tmp_path, f"zk://{zk_only.zookeepers[0].id}/ledgers")
    process.start()
    yield process
    process.end()


class Modelled:
    """A :class:`ModelBookie` that syncs at once."""

    polls = True

    def __init__(self, bookie: ModelBookie | None = None) -> None:
        self.bookie = bookie or ModelBookie("b1")
        self.bookie.syncs_at_once = True
        self._answered: dict[int, bytes] = {}

    def ask(self, request: bytes, *, poll: int = 0) -> bytes | None:
        effects = self.bookie.handle(Request("client", "b1", "", (poll,), request), "")
        answers = {effect.tag[0]: effect.frame for effect in effects if isinstance(effect, Answer)}
        answer = answers.pop(poll, None)
        self._answered.update(answers)
        return answer

    def answered_polls(self) -> dict[int, bytes]:
        answered, self._answered = self._answered, {}
        return answered

    def start_again(self) -> None:
        for verb in ("crash", "restart"):
            self.bookie.handle(Command(verb, "b1"), "")
        # The client has noticed, and has new connections.
        self.bookie.broken = frozenset()


class Served:
    """A :class:`ServedBookie`, which has no disk. It answers no long polls."""

    polls = False

    def __init__(self, bookie: ServedBookie | None = None) -> None:
        self.bookie = bookie or ServedBookie("b1")
        self.transport = self
        self._written: list[bytes] = []

    def write(self, answer: bytes) -> None:
        self._written.append(answer)

    def ask(self, request: bytes, *, poll: int = 0) -> bytes | None:
        if wire_v3.is_v3(request[4:]):
            self.bookie.handle_v3(cast(Any, self), wire_v3.parse_request(request[4:]))
        else:
            for each in wire_v2.parse_requests(frames(request)):
                self.bookie.handle(cast(Any, self), each)
        return self._written.pop()

    def answered_polls(self) -> dict[int, bytes]:
        return {}

    def start_again(self) -> None:
        pass


def seeds() -> list[str]:
    """Other sequences every day; ``BOOKIE_MODEL_SEED`` repeats one."""
    wanted = os.environ.get("BOOKIE_MODEL_SEED")
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    return [wanted] if wanted else [f"{day}.{number}" for number in range(SEQUENCES)]


@contextlib.contextmanager
def told(seed: str, comparison: Comparison) -> Iterator[None]:
    try:
        yield
    except (DifferenceError, TimeoutError) as error:
        raise DifferenceError(f"{error}\nafter {', '.join(comparison.told)}\nagain: BOOKIE_MODEL_SEED={seed}") from None


def compare(bookie: BookieProcess, seeds: list[str], model: Callable[[], Modelled | Served]) -> None:
    """Half of each sequence, a crash and start of the bookie, the other half."""
    subjects = [model() for _ in seeds]
    comparisons = [
        Comparison(seed, next(_ids), subject, bookie.connect) for seed, subject in zip(seeds, subjects, strict=True)
    ]
    try:
        for seed, comparison in zip(seeds, comparisons, strict=True):
            with told(seed, comparison):
                comparison.run(STEPS)
                comparison.force()
        bookie.crash()
        bookie.start()
        for seed, subject, comparison in zip(seeds, subjects, comparisons, strict=True):
            subject.start_again()
            comparison.reconnect()
            with told(seed, comparison):
                comparison.run(STEPS)
                comparison.end()
    finally:
        for comparison in comparisons:
            comparison.close()


@pytest.mark.parametrize("model", [Modelled, Served])
def test_the_models_answer_like_a_bookie(bookie: BookieProcess, model: type[Modelled | Served]) -> None:
    print(f"seeds {seeds()[0]} to {seeds()[-1]}")
    compare(bookie, seeds(), model)


class ForgetsItsFence(ModelBookie):
    def _sync(self) -> list[Effect]:
        effects = super()._sync()
        self.fenced_on_disk = False
        return effects


class RefusesRecoveryAdds(ModelBookie):
    def _add(self, request: Request, seen: AddSeen, way: Way) -> list[Effect]:
        return super()._add(request, replace(seen, recovery=False), way)


class FencesNothing(ModelBookie):
    def _request(self, request: Request, way: Way) -> list[Effect]:
        fenced = self.fenced
        effects = super()._request(request, way)
        self.fenced = fenced
        return effects


class LosesEntriesInACrash(ModelBookie):
    def _start(self) -> None:
        self.disk.pop(max(self.disk, default=-1), None)
        super()._start()


BROKEN = [
    ForgetsItsFence,
    RefusesRecoveryAdds,
    FencesNothing,
    LosesEntriesInACrash,
]


def test_models_that_differ_are_found(bookie: BookieProcess) -> None:
    for kind in BROKEN:

        def broken(kind: type[ModelBookie] = kind) -> Modelled:
            modelled = Modelled(kind("b1"))
            modelled.polls = False  # a poll that only the model answers would take its whole time
            return modelled

        with pytest.raises(DifferenceError) as found:
            compare(bookie, [f"broken.{number}" for number in range(20)], broken)
        print(f"{kind.__name__}: {str(found.value).splitlines()[0]}")
