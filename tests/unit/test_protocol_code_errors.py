"""Codes as errors: who has to act, whether to try again, and where it was."""

from __future__ import annotations

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import (
    BookieAnswerError,
    LedgerFencedError,
    PeerError,
    RequestRefusedError,
    UnauthorizedError,
)
from bk_spark.protocol.wire.code_errors import error_of, reason_of

NOT_OK = [code for code in Code if code is not Code.OK]
#: The same request to the same bookie, or the next, may go well later.
RETRIABLE = {
    Code.NO_LEDGER,
    Code.NO_ENTRY,
    Code.IO_ERROR,
    Code.READ_ONLY,
    Code.TOO_MANY_REQUESTS,
    Code.UNKNOWN_LEDGER_STATE,
}


@pytest.mark.parametrize("code", NOT_OK)
@pytest.mark.parametrize("with_key", [True, False])
def test_texts_and_retries(code: Code, with_key: bool) -> None:
    error = error_of(code, "read", ledger_id=7, entry_id=9, bookie_id="b1:3181", with_key=with_key)
    assert error.retriable is (code in RETRIABLE)
    assert error.message == f"read: the bookie {reason_of(code, with_key=with_key)}"
    assert reason_of(code, with_key=with_key).startswith(f"answered {code.name}")
    assert str(error).endswith(f"(ledger 7, entry 9, bookie b1:3181, code {code.name})")


def test_kinds() -> None:
    kinds = {code: type(error_of(code, "add", with_key=True)) for code in NOT_OK}
    assert kinds.pop(Code.UNAUTHORIZED) is UnauthorizedError
    assert kinds.pop(Code.FENCED) is LedgerFencedError
    assert kinds.pop(Code.BAD_REQUEST) is kinds.pop(Code.BAD_VERSION) is RequestRefusedError
    assert set(kinds.values()) == {BookieAnswerError}
    assert issubclass(RequestRefusedError, PeerError)


def test_unauthorized_without_a_key_can_only_be_about_authentication() -> None:
    assert "requires authentication" in str(error_of(Code.UNAUTHORIZED, "read"))
    assert "password" not in str(error_of(Code.UNAUTHORIZED, "read"))
    with_key = str(error_of(Code.UNAUTHORIZED, "add", with_key=True))
    assert "password" in with_key
    assert "requires authentication" in with_key
