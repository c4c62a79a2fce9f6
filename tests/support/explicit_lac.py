"""Publishes the LAC of an idle writer: WRITE_LAC over v3, from the test's own socket."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_lac
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.wire_v3 import parse_response, request_header


def write_explicit_lac(bookie_ids: Iterable[str], ledger_id: int, lac: int, password: bytes = b"") -> None:
    """Tell each bookie (``host:port``) that ``lac`` is confirmed. The ledger's digest must be CRC32C."""
    body = pack_lac(ledger_id, lac, digest_function(DigestType.CRC32C, password))
    request = pb.Request(
        header=request_header(pb.WRITE_LAC, 1),
        writeLacRequest=pb.WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=master_key(password), body=body),
    )
    for bookie_id in bookie_ids:
        host, _, port = bookie_id.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection, connection.makefile("rb") as stream:
            connection.sendall(frame(request.SerializeToString()))
            answer = parse_response(stream.read(int.from_bytes(stream.read(4), "big")))
        assert answer.status == pb.EOK, answer
