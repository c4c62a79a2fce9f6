"""Apache's Java client, driven from Python: one JVM for a test session, told what to do in JSON lines.

The other side is ``java/src/main/java/org/bkspark/interop``. Calls run side by side there, so a call that never
ends (some do, in Apache's client) times out alone.
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from bookie_server.local.zookeeper import find_java
from tests.interop import jvm
from tests.interop.maven_build import PROJECT, harness_classpath
from tests.interop.payloads import Payloads

#: Digest types by the names of Apache's client API.
DIGESTS: Final = ("CRC32", "CRC32C", "MAC", "DUMMY")
WIRES: Final = (2, 3)
#: Of a ledger that is to be recovered under its writer: each bookie has answered all adds before it is fenced. With a
#: smaller ack quorum Java's writer counts the refusal of a late one as a failed bookie (``notifyWriteFailed`` in
#: PendingAddOp), and the next add fails otherwise than with "fenced".
ALL_OF_THREE: Final = (3, 3, 3)
DEFAULT_PASSWORD: Final = "interop-password"

CALL_TIMEOUT_MS: Final = 120_000
#: Above the command's own timeout, for the answer to come through.
_ANSWER_GRACE_S: Final = 10.0
_EXIT_TIMEOUT_S: Final = 30.0
_LOG_TAIL_LINES: Final = 30


class JavaError(Exception):
    """What Apache's client threw: ``error`` is the exception's simple class name, ``code`` BookKeeper's code."""

    def __init__(self, command: str, error: str, message: str, code: int | None) -> None:
        super().__init__(f"{command}: {error}: {message}" + (f" (code {code})" if code is not None else ""))
        self.error = error
        self.code = code


class HarnessError(Exception):
    """The harness itself failed: it ended, or gave no answer. The text has the end of its log."""


@dataclass(frozen=True, slots=True)
class JavaAppend:
    """Entry ids of one append, inclusive; ``length`` is the bytes of the ledger so far."""

    first_entry_id: int
    last_entry_id: int
    last_add_confirmed: int
    length: int


@dataclass(frozen=True, slots=True)
class JavaClose:
    ledger_id: int
    last_entry_id: int
    length: int


@dataclass(frozen=True, slots=True)
class JavaRead:
    """What Java read: ``count`` payloads of ``size_bytes`` in total, their ``fingerprint``, in ``calls`` calls.

    ``accumulated_length`` is the length in the last entry's header; ``last_add_confirmed``, ``length`` and
    ``closed`` are the handle's. ``payloads`` only where asked for.
    """

    count: int
    size_bytes: int
    calls: int
    accumulated_length: int
    fingerprint: str
    last_add_confirmed: int
    length: int
    closed: bool
    payloads: tuple[bytes, ...] | None


@dataclass(frozen=True, slots=True)
class JavaMetadata:
    """Ledger metadata as Java parses it; ``segments`` are (first entry id, bookie ids)."""

    ledger_id: int
    state: str
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    last_entry_id: int
    length: int
    digest: str
    has_password: bool
    format_version: int
    ctime_ms: int
    custom_metadata: dict[str, bytes]
    segments: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class JavaWriterState:
    """What a writer's handle says of itself."""

    last_add_confirmed: int
    last_add_pushed: int
    length: int
    closed: bool


@dataclass(frozen=True, slots=True)
class JavaWriter:
    """An open ledger in the harness."""

    client: JavaClient
    handle: str
    ledger_id: int

    def append(
        self, payloads: Payloads | Sequence[bytes], *, in_flight: int = 1000, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> JavaAppend:
        """Append with at most ``in_flight`` unconfirmed entries; returns when all are confirmed."""
        answer = self.client.call(
            "append",
            timeout_ms=timeout_ms,
            writer=self.handle,
            payloads=_to_json(payloads),
            in_flight=in_flight,
        )
        return JavaAppend(**answer)

    def append_adv(
        self, entry_ids: Sequence[int], payloads: Payloads | Sequence[bytes], *, awaiting: Sequence[int]
    ) -> JavaWriterState:
        """Add under these ids; returns when ``awaiting``, ids of this call or of one before, are confirmed."""
        arguments = {
            "writer": self.handle,
            "entry_ids": list(entry_ids),
            "payloads": _to_json(payloads),
            "await": list(awaiting),
        }
        answer = self.client.call("append_adv", timeout_ms=CALL_TIMEOUT_MS, **arguments)
        return JavaWriterState(**answer)

    def force(self) -> JavaWriterState:
        return JavaWriterState(**self.client.call("force", writer=self.handle))

    def state(self) -> JavaWriterState:
        return JavaWriterState(**self.client.call("writer_state", writer=self.handle))

    def abandon(self) -> None:
        """Forget the ledger without closing it."""
        self.client.call("abandon", writer=self.handle)

    def close(self) -> JavaClose:
        return JavaClose(**self.client.call("close", writer=self.handle))


class JavaClient:
    """The harness process; a context manager. Thread-safe. ``log_path`` gets what the JVM logs; ``jvm_options``
    (see :mod:`tests.interop.jvm`) are those of memory and compiler."""

    project: ClassVar[Path] = PROJECT
    main: ClassVar[str] = "org.bkspark.interop.Harness"

    def __init__(self, log_path: Path, jvm_options: Sequence[str] = jvm.SMALL_CLIENT) -> None:
        self._log_path = log_path
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, Future[dict[str, Any]]]] = {}
        self._ended = False
        options = (*jvm_options, *jvm.COMMON)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [find_java(), *options, "-cp", harness_classpath(self.project), self.main],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C at a terminal reaches the test run, which then ends this process in order.
                process_group=0,
            )
        self._reader = threading.Thread(target=self._read_answers, name="java-client", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process: it ends with its input, else by SIGKILL. Safe to repeat."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(_EXIT_TIMEOUT_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(_EXIT_TIMEOUT_S)
        self._reader.join(_EXIT_TIMEOUT_S)
        self._process.stdout.close()

    def call(self, command: str, *, timeout_ms: int = CALL_TIMEOUT_MS, **arguments: Any) -> dict[str, Any]:
        """Run a command of the harness and wait. Raises :class:`JavaError`, :class:`HarnessError`."""
        future = self.submit(command, timeout_ms=timeout_ms, **arguments)
        try:
            return future.result(timeout_ms / 1000 + _ANSWER_GRACE_S)
        except TimeoutError:
            raise HarnessError(f"no answer to {command} within {timeout_ms} ms\n{self._log_tail()}") from None

    def submit(self, command: str, *, timeout_ms: int = CALL_TIMEOUT_MS, **arguments: Any) -> Future[dict[str, Any]]:
        """As :meth:`call`, without waiting."""
        future: Future[dict[str, Any]] = Future()
        request_id = next(self._ids)
        request = {"id": request_id, "command": command, "timeout_ms": timeout_ms, **arguments}
        line = json.dumps(request).encode() + b"\n"
        assert self._process.stdin is not None
        with self._lock:
            if self._ended:
                raise HarnessError(f"the Java harness has ended\n{self._log_tail()}")
            self._waiting[request_id] = (command, future)
            try:
                self._process.stdin.write(line)
                self._process.stdin.flush()
            except BrokenPipeError:
                raise HarnessError(f"the Java harness has ended\n{self._log_tail()}") from None
        return future

    # --- the commands, typed ------------------------------------------------------------------

    def init_cluster(self, uri: str) -> None:
        """Create a new cluster's znodes as Apache's ``initnewcluster`` does."""
        if not self.call("init_cluster", uri=uri)["created"]:
            raise HarnessError(f"Apache's initnewcluster refused {uri}")

    def list_bookies(self, uri: str) -> tuple[list[str], list[str]]:
        """(writable, read-only) bookie ids as Java sees them."""
        answer = self.call("list_bookies", uri=uri)
        return sorted(answer["writable"]), sorted(answer["readonly"])

    def create(
        self,
        uri: str,
        *,
        digest: str = "CRC32C",
        password: str = DEFAULT_PASSWORD,
        quorums: tuple[int, int, int] = (3, 3, 2),
        wire: int = 3,
        adv: bool = False,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
        custom_metadata: Mapping[str, bytes] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> JavaWriter:
        """Create a ledger; ``quorums`` are ensemble, write quorum and ack quorum size.

        ``adv``: its entries get ids from the caller (``append_adv``), and it may ask for a ``ledger_id``.
        ``settings`` are further keys of the client's configuration.
        """
        answer = self.call(
            "create_adv" if adv else "create",
            uri=uri,
            wire=wire,
            digest=digest,
            password=password,
            ensemble_size=quorums[0],
            write_quorum_size=quorums[1],
            ack_quorum_size=quorums[2],
            deferred_sync=deferred_sync,
            custom_metadata={
                key: base64.b64encode(value).decode("ascii") for key, value in (custom_metadata or {}).items()
            },
            settings=dict(settings or {}),
            **({} if ledger_id is None else {"ledger_id": ledger_id}),
        )
        return JavaWriter(self, answer["writer"], answer["ledger_id"])

    def read(
        self,
        uri: str,
        ledger_id: int,
        *,
        recovery: bool,
        digest: str = "CRC32C",
        password: str = DEFAULT_PASSWORD,
        wire: int = 3,
        batch: bool = False,
        entries: tuple[int, int] | None = None,
        unconfirmed: bool = False,
        with_payloads: bool = False,
        settings: Mapping[str, str] | None = None,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> JavaRead:
        """Open (``recovery`` fences and closes), read ``entries`` (inclusive; default: all confirmed), close.

        ``batch`` reads in batches, which takes wire 2 and an ensemble as large as the write quorum;
        ``unconfirmed`` reads past the last add confirmed; ``settings`` as for :meth:`create`.
        """
        limits = {} if entries is None else {"first_entry_id": entries[0], "last_entry_id": entries[1]}
        answer = self.call(
            "read",
            timeout_ms=timeout_ms,
            uri=uri,
            ledger_id=ledger_id,
            recovery=recovery,
            digest=digest,
            password=password,
            wire=wire,
            batch=batch,
            unconfirmed=unconfirmed,
            with_payloads=with_payloads,
            settings=dict(settings or {}),
            **limits,
        )
        payloads = answer.pop("payloads", None)
        return JavaRead(
            **answer, payloads=None if payloads is None else tuple(base64.b64decode(payload) for payload in payloads)
        )

    def metadata(self, uri: str, ledger_id: int) -> JavaMetadata:
        answer = self.call("metadata", uri=uri, ledger_id=ledger_id)
        custom = {key: base64.b64decode(value) for key, value in answer.pop("custom_metadata").items()}
        segments = tuple((segment["first_entry_id"], tuple(segment["bookies"])) for segment in answer.pop("segments"))
        return JavaMetadata(**answer, custom_metadata=custom, segments=segments)

    def delete(self, uri: str, ledger_id: int) -> None:
        self.call("delete", uri=uri, ledger_id=ledger_id)

    def forget(self, uri: str) -> None:
        """Close the clients of a cluster that is about to go."""
        self.call("forget", uri=uri)

    def replication(self, uri: str, session: str, call: str, **arguments: Any) -> dict[str, Any]:
        """Call Apache's manager of under-replication (``ReplicationCommands.java``) in a session of this name."""
        return self.call("replication", uri=uri, session=session, call=call, **arguments)

    def end_replication(self, session: str) -> None:
        self.call("replication_end", session=session)

    # --- the reading side ---------------------------------------------------------------------

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer: dict[str, Any] = json.loads(line)
            with self._lock:
                command, future = self._waiting.pop(answer.pop("id"))
            if answer.pop("ok"):
                future.set_result(answer)
            else:
                future.set_exception(JavaError(command, answer["error"], answer["message"], answer.get("code")))
        with self._lock:
            self._ended = True
            left, self._waiting = self._waiting, {}
        for command, future in left.values():
            future.set_exception(HarnessError(f"the Java harness ended during {command}\n{self._log_tail()}"))

    def _log_tail(self) -> str:
        lines = self._log_path.read_text("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([f"the end of {self._log_path}:", *lines])


def _to_json(payloads: Payloads | Sequence[bytes]) -> dict[str, Any]:
    if isinstance(payloads, Payloads):
        return payloads.to_json()
    return {"base64": [base64.b64encode(payload).decode("ascii") for payload in payloads]}
