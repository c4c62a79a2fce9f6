"""The bookie of the protocol's model world answers like a real one, and the comparison finds models that do not."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.local import LocalCluster
from tests.simulation.bytes_cache import AddSeen
from tests.simulation.events import Answer, Command, Effect, Request, Way
from tests.simulation.servers import ModelBookie
from tests.support.admin import put, token_file
from tests.support.bookie import BookieProcess, free_port
from tests.support.bookie_operations import Comparison, DifferenceError
from tests.support.read_stage import ReadBookie
from tests.support.wire import frames

#: ``BOOKIE_MODEL_SEQUENCES=1000`` tries more.
SEQUENCES = int(os.environ.get("BOOKIE_MODEL_SEQUENCES", "60"))
STEPS = 10

_ids = itertools.count(20_000)


@pytest.fixture
def bookie(zk_only: LocalCluster, tmp_path: Path) -> Iterator[BookieProcess]:
    process = BookieProcess(
        tmp_path,
        f"zk://{zk_only.zookeepers[0].id}/ledgers",
        httpServerEnabled="true",
        httpServerPort=str(free_port()),
        httpServerTokenFile=token_file(tmp_path),
        gcBrakeShare="1",
        gcBrakeIdsNotGiven="false",
    )
    process.start()
    yield process
    process.end()


class Modelled:
    """A :class:`ModelBookie` that syncs at once."""

    polls, lacs = True, False

    def __init__(self, bookie: ModelBookie | None = None) -> None:
        self.bookie = bookie or ModelBookie("b1")
        self.bookie.syncs_at_once = True
        self._answered: dict[int, bytes] = {}

    def ask(self, request: bytes, *, poll: int = 0) -> bytes | None:
        effects = self.bookie.handle(Request("client", "b1", "", (poll,), request), "")
        self._note(effects)
        return self._answered.pop(poll, None)

    def _note(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self._answered[cast(int, effect.tag[0])] = cast(bytes, effect.frame)

    def answered_polls(self) -> dict[int, bytes]:
        answered, self._answered = self._answered, {}
        return answered

    def delete(self) -> bool:
        self._note(self.bookie.handle(Command("delete", "b1"), ""))
        return True

    def start_again(self) -> None:
        for verb in ("crash", "restart"):
            self.bookie.handle(Command(verb, "b1"), "")
        # The client has noticed, and has new connections.
        self.bookie.broken = frozenset()


class Served:
    """A :class:`ReadBookie`, which has no disk. It answers long polls when the test says so."""

    polls, lacs = False, True

    def __init__(self, bookie: ReadBookie | None = None) -> None:
        self.bookie = bookie or ReadBookie("b1")
        self.transport = self
        self._written: list[bytes] = []

    def write(self, answer: bytes) -> None:
        self._written.append(answer)

    def ask(self, request: bytes, *, poll: int = 0) -> bytes | None:
        if is_v3(request[4:]):
            self.bookie.handle_v3(cast(Any, self), wire_v3.parse_request(request[4:]))
        else:
            for each in wire_v2.parse_requests(frames(request)):
                self.bookie.handle(cast(Any, self), each)
        return self._written.pop()

    def answered_polls(self) -> dict[int, bytes]:
        return {}

    def delete(self) -> bool:
        """Return False: nobody deletes its ledger."""
        return False

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
    """A third of each sequence, a crash and start of the bookie, a third, deletion of the ledgers, a third."""
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
        if all(subject.delete() for subject in subjects):
            collect(bookie)
            for comparison in comparisons:
                comparison.deleted()
        for seed, comparison in zip(seeds, comparisons, strict=True):
            with told(seed, comparison):
                comparison.run(STEPS)
                comparison.end()
    finally:
        for comparison in comparisons:
            comparison.close()


def collect(bookie: BookieProcess) -> None:
    """Let the bookie delete all ledgers without metadata: all of this module."""
    url = f"http://127.0.0.1:{bookie.settings['httpServerPort']}/api/v1/bookie/gc"
    put(url)
    deadline = time.monotonic() + 60
    while json.loads(urllib.request.urlopen(url, timeout=60).read()) != {"is_in_force_gc": "false"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


class ForgetsADeletedFence(ModelBookie):
    def _command(self, command: Command) -> list[Effect]:
        effects = super()._command(command)
        self.deleted_fenced = False
        return effects


class KeepsDeletedEntries(ModelBookie):
    def _command(self, command: Command) -> list[Effect]:
        memory = self.memory
        effects = super()._command(command)
        if command.verb == "delete":
            self.memory = memory
        return effects


class TakesALowerLac(ReadBookie):
    def _take_lac(self, packet: bytes) -> None:
        self.explicit_lac = packet


class TellsNoLastEntry(ReadBookie):
    def _lac_response(self, request: pb.Request) -> pb.ReadLacResponse:
        response = super()._lac_response(request)
        response.ClearField("lastEntryBody")
        return response


BROKEN = [
    ForgetsItsFence,
    RefusesRecoveryAdds,
    FencesNothing,
    LosesEntriesInACrash,
    ForgetsADeletedFence,
    KeepsDeletedEntries,
    TakesALowerLac,
    TellsNoLastEntry,
]


def test_models_that_differ_are_found(bookie: BookieProcess) -> None:
    for kind in BROKEN:

        def broken(kind: type[ModelBookie | ReadBookie] = kind) -> Modelled | Served:
            model = kind("b1")
            if isinstance(model, ReadBookie):
                return Served(model)
            modelled = Modelled(model)
            modelled.polls = False  # a poll that only the model answers would take its whole time
            return modelled

        with pytest.raises(DifferenceError) as found:
            compare(bookie, [f"broken.{number}" for number in range(20)], broken)
        print(f"{kind.__name__}: {str(found.value).splitlines()[0]}")
