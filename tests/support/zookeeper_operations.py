"""Random operations on two ZooKeepers, the model and a real one, whose answers must be alike.

Both have the same sessions. Ids of transactions and sessions, and times, differ; but they must be equal, and in order,
where those of the model are.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.znodes import (
    CheckOp,
    CreateOp,
    DeleteOp,
    SetOp,
    TransactionConflictError,
    TransactionOp,
    Znode,
)
from tests.support.zookeeper_model import ZooKeeperModel
from tests.support.zookeeper_model_session import ModelSession
from tests.support.zookeeper_sessions import expire, wait_for_callbacks

SESSIONS: Final = 3
STEPS: Final = 30
_NAMES: Final = ("a", "b", "0000000007", "L" * 250, "ü x")
_DEPTH: Final = 3
#: A session's end takes about as long as a hundred other operations.
_EXPIRIES: Final = 0.02


class DifferenceError(AssertionError):
    """The model and ZooKeeper answered differently."""


class Calls:
    """The watches of one ZooKeeper that were called: session, number and path of each."""

    def __init__(self) -> None:
        self.called: list[tuple[int, int, str]] = []
        self._changed = threading.Condition()

    def watch(self, session: int, number: int) -> Callable[[str], None]:
        def call(path: str) -> None:
            with self._changed:
                self.called.append((session, number, path))
                self._changed.notify_all()

        return call

    def wait(self, count: int) -> bool:
        """Wait a little for so many calls."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.called) >= count, timeout=0.2)


@dataclass(slots=True)
class _Pairs:
    """Which number of ZooKeeper each number of the model is. Both must be in the same order."""

    what: str
    strict: bool
    real_of: dict[int, int] = field(default_factory=dict)

    def add(self, model: int, real: int) -> None:
        if self.real_of.setdefault(model, real) != real:
            raise DifferenceError(f"{self.what} {model} of the model is {self.real_of[model]} and {real}")

    def check(self) -> None:
        reals = [self.real_of[model] for model in sorted(self.real_of)]
        ordered = sorted(set(reals)) if self.strict else sorted(reals)
        if reals != ordered:
            raise DifferenceError(f"{self.what}: {self.real_of} is not in order")


class Comparison:
    """One sequence of operations, below a root that exists in neither ZooKeeper."""

    def __init__(self, seed: str, root: str, real: list[ZooKeeper], model: type[ZooKeeperModel]) -> None:
        self._random = Random(seed)
        self._root = root
        self._real = real
        self._zk = model(lambda: self._zk.zxid)
        self._model = [ModelSession(self._zk) for _ in real]
        self._calls = (Calls(), Calls())
        self._watches = 0
        self._zxids, self._times = _Pairs("transaction", strict=True), _Pairs("time", strict=False)
        self._sessions: dict[int, int] = {}
        #: The operations so far, for the error.
        self.told: list[str] = []

    def run(self) -> None:
        """Raises DifferenceError."""
        self._both(0, "create", self._root)
        for _ in range(STEPS):
            self._step()
        paths = self._zk.paths()[1:]
        self._both(0, "get_many", paths)
        for path in paths:
            self._both(0, "children", path)
        self._settle()
        self._compare_watches(in_order=True)
        self._zxids.check()
        self._times.check()

    def _step(self) -> None:
        draw, random = self._random.random(), self._random
        session = random.randrange(len(self._real))
        path = self._path()
        if draw < _EXPIRIES:
            self._expire(session)
        elif draw < 0.25:
            flags = {flag: True for flag in ("ephemeral", "sequence", "make_parents") if random.random() < 0.3}
            self._both(session, "create", path, self._data(), **flags)
        elif draw < 0.35:
            self._both(session, "set", path, self._data(), self._version(path))
        elif draw < 0.45:
            self._both(session, "delete", path, self._version(path))
        elif draw < 0.65:
            operations = [self._operation() for _ in range(random.choice([1, 2, 3, 3, 5]))]
            self._both(session, "transaction", operations)
        elif draw < 0.68:
            self._both(session, "ensure_path", path)
        elif draw < 0.71:
            self._both(session, "sync", path)
        elif draw < 0.75:
            self._both(session, "get_many", sorted({self._path() for _ in range(3)}))
        else:
            call = random.choice(["get", "exists", "children", "get_latest"])
            self._both(session, call, path, watched=random.random() < 0.7)

    # --- what is drawn ---

    def _path(self) -> str:
        """Mostly one that exists, or a child of one."""
        here = [path for path in self._zk.paths() if path.startswith(self._root)]
        path = self._random.choice([*here, self._root])
        draw = self._random.random()
        if draw < 0.1:
            path = f"{path}/{self._random.choice(_NAMES)}/{self._random.choice(_NAMES)}"
        elif draw < 0.6 or path == self._root:
            path = f"{path}/{self._random.choice(_NAMES)}"
        return "/".join(path.split("/")[: _DEPTH + 2])

    def _data(self) -> bytes:
        return self._random.choice([b"", b"x", b"\x00\xff", self._random.randbytes(20), bytes(20_000)])

    def _version(self, path: str) -> int:
        found = self._zk.read(path)
        true = 0 if found is None else found.version
        return self._random.choice([true, true, true, -1, -1, true + 1, 7])

    def _operation(self) -> TransactionOp:
        path, draw = self._path(), self._random.random()
        if draw < 0.4:
            return CreateOp(path, self._data(), ephemeral=self._random.random() < 0.3)
        if draw < 0.6:
            return SetOp(path, self._data(), self._version(path))
        if draw < 0.8:
            return DeleteOp(path, self._version(path))
        return CheckOp(path, self._version(path))

    # --- at both ---

    def _both(self, number: int, call: str, *arguments: Any, watched: bool = False, **named: Any) -> None:
        told = [_short(each) for each in arguments]
        self.told.append(f"session {number}: {call} {' '.join(told)} {named or ''}{' watched' if watched else ''}")
        answers = []
        for session, calls in zip((self._model[number], self._real[number]), self._calls, strict=True):
            watch = {"watch": calls.watch(number, self._watches)} if watched else {}
            try:
                answers.append(getattr(session, call)(*arguments, **named, **watch))
            except BookKeeperError as error:
                answers.append(_refusal(error))
        self._watches += watched
        self._compare(*answers)
        self._compare_watches(in_order=True)

    def _expire(self, number: int) -> None:
        """End this session, or one that has ephemeral nodes."""
        owners = [each for each, session in enumerate(self._model) if self._zk.ephemerals(session.session_id)]
        number = self._random.choice([number, *owners])
        self.told.append(f"session {number} ends")
        self._model[number].expire()
        expire(self._real[number])
        self._compare_watches(in_order=False)

    def _compare(self, model: Any, real: Any) -> None:
        if isinstance(model, dict) and isinstance(real, dict):
            if model.keys() != real.keys():
                raise DifferenceError(f"paths {list(model)} and {list(real)}")
            for path in model:
                self._compare(model[path], real[path])
        elif isinstance(model, Znode) and isinstance(real, Znode):
            self._compare_znodes(model, real)
        elif isinstance(model, list) and isinstance(real, list):
            self._require_equal(sorted(model), sorted(real))
        else:
            self._require_equal(model, real)

    def _compare_znodes(self, model: Znode, real: Znode) -> None:
        for name in ("data", "version", "children"):
            self._require_equal(getattr(model, name), getattr(real, name), f"{name}: ")
        self._zxids.add(model.created_zxid, real.created_zxid)
        self._times.add(model.ctime_ms, real.ctime_ms)
        self._times.add(model.mtime_ms, real.mtime_ms)
        self._sessions.update(zip([each.session_id for each in self._model], _ids(self._real), strict=True))
        owner = self._sessions[model.owner_session] if model.owner_session else 0
        self._require_equal(owner, real.owner_session, "owner: ")

    def _compare_watches(self, *, in_order: bool) -> None:
        """The calls of both, since the step began."""
        model, real = self._calls
        if not real.wait(len(model.called)):
            self._settle()
        self._require_equal(sorted(model.called), sorted(real.called), "watches called: ")
        if in_order:
            for session in range(len(self._real)):
                orders = (_changes(calls.called, session) for calls in self._calls)
                self._require_equal(*orders, "order of watches: ")
        model.called.clear()
        real.called.clear()

    def _settle(self) -> None:
        """Wait until ZooKeeper has called every watch that it had to call: it does so before it answers."""
        for session in self._real:
            wait_for_callbacks(session)

    def _require_equal(self, model: Any, real: Any, what: str = "") -> None:
        if model != real:
            raise DifferenceError(f"{what}the model says {_short(model)}, ZooKeeper {_short(real)}")


def _ids(sessions: Iterable[ZooKeeper]) -> list[int]:
    return [session.session_id for session in sessions]


def _refusal(error: BookKeeperError) -> tuple[object, ...]:
    if isinstance(error, TransactionConflictError):
        return (type(error).__name__, type(error.operation).__name__, error.operation.path, error.reason)
    return (type(error).__name__,)


def _changes(called: list[tuple[int, int, str]], session: int) -> list[str]:
    """The paths in the order of their calls in one session. Calls for the same change have no order."""
    paths = [path for caller, _, path in called if caller == session]
    return [path for number, path in enumerate(paths) if not number or paths[number - 1] != path]


def _short(value: object) -> str:
    text = repr(value)
    return re.sub(r"(L{9})L+|((?:\\x00){3})(?:\\x00)+", r"\1\2…", text)
