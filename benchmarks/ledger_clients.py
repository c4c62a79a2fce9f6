"""The clients that the ledger benchmark compares, each in its own process: ours, and Apache's in Java."""

from __future__ import annotations

import base64
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

import numpy as np

from benchmarks.ledger_worker import DIGEST, PASSWORD, Limits, Run, serve
from bk_spark.protocol.quorum import Quorum
from tests.interop.java_client import JavaClient
from tests.interop.payloads import Payloads

_EXIT_TIMEOUT_S: Final = 20.0
#: Time beyond a loop's own limit for creating, opening, draining, checking.
_GRACE_S: Final = 60.0

#: Entries in flight (or read ahead), and entries per call.
Window = tuple[int, int]


class BenchClient(Protocol):
    """A client with one version of the wire protocol."""

    name: str

    def write(
        self, uri: str, payloads: Payloads, window: Window, limits: Limits, quorum: Quorum, profile: str = ""
    ) -> Run:
        """Write a new ledger and close it."""

    def read(
        self, uri: str, ledger_id: int, payloads: Payloads, how: str, window: Window, limits: Limits, profile: str = ""
    ) -> Run:
        """Read a closed ledger repeatedly. ``how``: single, pipelined, batch or range."""


class OurProcess:
    """The process of our client. A context manager."""

    def __init__(self, profile_directory: Path | None = None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        arguments = (theirs, None if profile_directory is None else str(profile_directory))
        self._process = spawn.Process(target=serve, args=arguments, name="ledger-benchmark-client")
        self._process.start()
        theirs.close()
        self._made: dict[Payloads, list[bytes]] = {}

    def __enter__(self) -> OurProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(_EXIT_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def check(self, uri: str, ledger_id: int, payloads: Payloads, entries: int) -> None:
        """Raise if a ledger, written by either client, does not have what was written."""
        self.call("check", 0, payloads, uri=uri, ledger_id=ledger_id, entries=entries)

    def delete(self, uri: str, ledger_id: int) -> None:
        self.call("delete", 0, uri=uri, ledger_id=ledger_id)

    def call(self, command: str, seconds: float, payloads: Payloads | None = None, /, **arguments: Any) -> Any:
        """Call a method of the worker that takes about ``seconds``."""
        if payloads is not None:
            if payloads not in self._made:
                self._made = {payloads: list(payloads)}
            arguments["payloads"] = self._made[payloads]
        self._pipe.send((command, arguments))
        if not self._pipe.poll(seconds + _GRACE_S):
            raise TimeoutError(f"our client did not end {command} in time")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


class OurBenchClient:
    """Our client, through its asyncio API."""

    def __init__(self, process: OurProcess, wire: int) -> None:
        self.name = "ours" if wire == 2 else f"ours-v{wire}"
        self._process = process
        self._wire = wire

    def write(
        self, uri: str, payloads: Payloads, window: Window, limits: Limits, quorum: Quorum, profile: str = ""
    ) -> Run:
        in_flight, per_call = window
        arguments = {"in_flight": in_flight, "per_call": per_call, "quorum": quorum, "profile": profile}
        common = {"uri": uri, "limits": limits, "wire": self._wire}
        run: Run = self._process.call("write", limits.seconds, payloads, **common, **arguments)
        return run

    def read(
        self, uri: str, ledger_id: int, payloads: Payloads, how: str, window: Window, limits: Limits, profile: str = ""
    ) -> Run:
        # Read-ahead is our client's default.
        arguments = {"ledger_id": ledger_id, "how": how, "profile": profile}
        common = {"uri": uri, "limits": limits, "wire": self._wire}
        run: Run = self._process.call("read", limits.seconds, payloads, **common, **arguments)
        return run


class JavaBenchClient:
    """Apache's client, through the asynchronous calls of its newer API, in the harness's process. ``settings`` are
    additional configuration keys."""

    def __init__(self, java: JavaClient, wire: int, settings: Mapping[str, str] | None = None) -> None:
        self.name = f"java-v{wire}"
        self._java = java
        self._common = {
            "wire": wire,
            "digest": DIGEST.name,
            "password": PASSWORD.decode(),
            "settings": dict(settings or {}),
        }

    def write(
        self,
        uri: str,
        payloads: Payloads,
        window: Window,
        limits: Limits,
        quorum: Quorum,
        profile: str = "",
        *,
        rate_per_second: float = 0.0,
    ) -> Run:
        """As in :class:`BenchClient`. With a rate, adds are evenly spaced and latencies count from the due time."""
        answer = self._call(
            "bench_write",
            limits,
            uri=uri,
            payloads=payloads.to_json(),
            in_flight=window[0],
            rate_per_second=rate_per_second,
            ensemble_size=quorum.ensemble_size,
            write_quorum_size=quorum.write_quorum_size,
            ack_quorum_size=quorum.ack_quorum_size,
        )
        count = answer["count"]
        expected = (count - 1, sum(payloads.sizes[i % len(payloads)] for i in range(count)))
        closed = answer["last_entry_id"], answer["length"]
        if closed != expected:
            raise RuntimeError(f"Apache's client closed the ledger with {closed}, not {expected}")
        return _run(answer)

    def read(
        self,
        uri: str,
        ledger_id: int,
        payloads: Payloads,
        how: str,
        window: Window,
        limits: Limits,
        profile: str = "",
        *,
        first_entry_id: int = 0,
    ) -> Run:
        """As in :class:`BenchClient`, starting at ``first_entry_id``."""
        answer = self._call(
            "bench_read",
            limits,
            uri=uri,
            ledger_id=ledger_id,
            payloads=payloads.to_json(),
            batch=how == "batch",
            first_entry_id=first_entry_id,
            in_flight=window[0],
            entries_per_call=window[1],
        )
        return _run(answer)

    def _call(self, command: str, limits: Limits, **arguments: Any) -> dict[str, Any]:
        timeout_ms = int((limits.seconds + _GRACE_S) * 1000)
        bounds = {"max_count": limits.count, "max_seconds": limits.seconds}
        return self._java.call(command, timeout_ms=timeout_ms, **bounds, **self._common, **arguments)


def _run(answer: dict[str, Any]) -> Run:
    latencies = np.frombuffer(base64.b64decode(answer["latencies_us"]), ">i4").astype(np.int32)
    return Run(answer["count"], answer["seconds"], answer["cpu_seconds"], latencies, answer.get("ledger_id", -1))
