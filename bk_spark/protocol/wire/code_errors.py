"""Turns a bookie's result codes into errors. Source: compatibility.md §1.5, §1.9, §1.10."""

from __future__ import annotations

from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import (
    BookieAnswerError,
    BookKeeperError,
    LedgerFencedError,
    RequestRefusedError,
    UnauthorizedError,
)

#: Explanations of codes whose names do not suffice.
_MEANINGS: Final = {
    Code.BAD_REQUEST: "it does not take such a request",
    Code.BAD_VERSION: "it does not speak this version of the protocol",
    Code.FENCED: "another client fenced the ledger",
    Code.UNKNOWN_LEDGER_STATE: "it lost data, and has not been checked since",
}
_NO_AUTHENTICATION: Final = (
    "it requires authentication (bookieAuthProviderFactoryClass) or TLS (tlsRequired), which this client's "
    "configuration does not ask for, or a right that this client does not have (authorizationFile)"
)


class AbsentError(Exception):
    """The bookie says that it does not have the entry."""


def check_read(code: Code) -> None:
    """Raise for an answer to a read that is not OK. Only NO_ENTRY and NO_LEDGER mean AbsentError."""
    if code in (Code.NO_ENTRY, Code.NO_LEDGER):
        raise AbsentError
    if code is not Code.OK:
        raise error_of(code)


def reason_of(code: Code, *, with_key: bool = False) -> str:
    """Return the reason for an answer that is not OK, to print after the bookie's name.

    ``with_key``: the request carried the ledger's master key. Only then can UNAUTHORIZED be about the password. Without
    a key it comes from bookies that require authentication.
    """
    meaning = _MEANINGS.get(code)
    if code is Code.UNAUTHORIZED:
        meaning = f"the ledger's password is wrong, or {_NO_AUTHENTICATION}" if with_key else _NO_AUTHENTICATION
    return f"answered {code.name}" + (f": {meaning}" if meaning else "")


def error_of(
    code: Code,
    operation: str | None = None,
    *,
    ledger_id: int | None = None,
    entry_id: int | None = None,
    bookie_id: str | None = None,
    with_key: bool = False,
) -> BookKeeperError:
    """Return the error for an answer that is not OK. Its text is :func:`reason_of`, after ``operation`` if given.

    An error is retriable if another time or bookie may give another answer: all but a wrong password, a fence, and a
    request that the bookie does not understand.
    """
    kind: type[BookKeeperError] = BookieAnswerError
    if code is Code.UNAUTHORIZED:
        kind = UnauthorizedError
    elif code is Code.FENCED:
        kind = LedgerFencedError
    elif code in (Code.BAD_REQUEST, Code.BAD_VERSION):
        kind = RequestRefusedError
    text = reason_of(code, with_key=with_key)
    return kind(
        f"{operation}: the bookie {text}" if operation else text,
        ledger_id=ledger_id,
        entry_id=entry_id,
        bookie_id=bookie_id,
        code=code.name,
    )
