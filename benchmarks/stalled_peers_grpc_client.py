"""A steady client over gRPC, for ``stalled_peers``: one call for all its requests, as that of the product has."""

from __future__ import annotations

import contextlib
import queue
from typing import Any, Final

import grpc

from bk_spark.protocol.proto import bookie_pb2 as pb
from tests.support.bookie import KEY, stored

_SERVICE: Final = "/bk_spark.v1.Bookie/"
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]


class GrpcCalls:
    """Requests of one kind over one connection. Raises OSError if one fails or takes longer than ``patience_s``."""

    def __init__(self, port: int, kind: str, patience_s: float) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._patience_s = patience_s
        self._call: Any = None
        self._method = "Add" if kind.startswith("add") else "Read"

    def add(self, ledger_id: int, entry_id: int, size: int) -> bool:
        entry = stored(ledger_id, entry_id, size)
        records = len(entry).to_bytes(4, "big") + entry
        batch = pb.AddBatch(ledger_id=ledger_id, master_key=KEY, count=1, records=records)
        return pb.AddAnswer.FromString(self._ask(batch.SerializeToString())).code == pb.CODE_OK

    def read(self, ledger_id: int, entry_id: int) -> bool:
        request = pb.ReadRequest(ledger_id=ledger_id, first_entry_id=entry_id, count=1)
        answer = pb.ReadAnswer.FromString(self._ask(request.SerializeToString()))
        return answer.code == pb.CODE_OK and not any(answer.codes)

    def info(self) -> bool:
        with self._errors():
            ask = self._channel.unary_unary(f"{_SERVICE}GetInfo")
            ask(pb.GetInfoRequest().SerializeToString(), timeout=self._patience_s)
        return True

    def close(self) -> None:
        self._messages.put(None)
        self._channel.close()

    def _ask(self, message: bytes) -> bytes:
        with self._errors():
            if self._call is None:
                self._call = self._channel.stream_stream(_SERVICE + self._method)(iter(self._messages.get, None))
            self._messages.put(message)
            answer: bytes = next(self._call)
            return answer

    @contextlib.contextmanager
    def _errors(self) -> Any:
        try:
            yield
        except grpc.RpcError as error:
            raise OSError(str(error.code())) from None
