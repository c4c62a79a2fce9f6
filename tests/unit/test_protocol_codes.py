"""Result codes: numbers on the wire, both protocols."""

from __future__ import annotations

import pytest

from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb

V3_NAMES = {
    Code.OK: "EOK",
    Code.NO_LEDGER: "ENOLEDGER",
    Code.NO_ENTRY: "ENOENTRY",
    Code.BAD_REQUEST: "EBADREQ",
    Code.IO_ERROR: "EIO",
    Code.UNAUTHORIZED: "EUA",
    Code.BAD_VERSION: "EBADVERSION",
    Code.FENCED: "EFENCED",
    Code.READ_ONLY: "EREADONLY",
    Code.TOO_MANY_REQUESTS: "ETOOMANYREQUESTS",
    Code.UNKNOWN_LEDGER_STATE: "EUNKNOWNLEDGERSTATE",
}


@pytest.mark.parametrize("code", Code)
def test_v3_numbers_are_those_of_the_protobuf_enum(code: Code) -> None:
    assert code.v3 == pb.StatusCode.Value(V3_NAMES[code])
    assert Code.from_v3(code.v3) is code


@pytest.mark.parametrize("code", Code)
def test_v2_numbers_are_read_back(code: Code) -> None:
    assert Code.from_v2(int(code)) is code


def test_a_limbo_ledger_is_an_io_error_for_v2_clients() -> None:
    assert Code.UNKNOWN_LEDGER_STATE.v2 == 101
    assert [code for code in Code if code.v2 != int(code)] == [Code.UNKNOWN_LEDGER_STATE]


@pytest.mark.parametrize("number", [-1, 3, 99, 108, 402, 2**31 - 1])
def test_unknown_numbers_are_never_ok_and_never_absent(number: int) -> None:
    assert Code.from_v2(number) is Code.BAD_REQUEST
    assert Code.from_v3(number + 1000) is Code.BAD_REQUEST


def test_digest_sizes() -> None:
    assert {digest: digest.digest_bytes for digest in DigestType} == {
        DigestType.CRC32: 8,
        DigestType.HMAC: 20,
        DigestType.CRC32C: 4,
        DigestType.DUMMY: 0,
    }
