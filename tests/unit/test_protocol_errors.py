"""The error tree: texts, and the way through pickle from a Spark worker to the driver."""

from __future__ import annotations

import inspect
import pickle

import pytest

from bk_spark.protocol import errors
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError, OutcomeUnknownError
from bk_spark.protocol.metadata.znodes import CreateOp, TransactionConflictError

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, BookKeeperError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_survives_pickling_with_all_it_knows(kind: type[BookKeeperError]) -> None:
    error = kind("it broke", ledger_id=7, entry_id=3, bookie_id="b1:3181", code="IO_ERROR")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert copy.__dict__ == error.__dict__
    assert str(copy) == str(error) == "it broke (ledger 7, entry 3, bookie b1:3181, code IO_ERROR)"
    assert copy.args == ("it broke",)


def test_an_error_with_a_constructor_of_its_own_survives_too() -> None:
    error = TransactionConflictError(CreateOp("/a"), "NodeExistsError")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.operation, str(copy)) == (TransactionConflictError, CreateOp("/a"), str(error))


def test_text_names_only_what_is_known() -> None:
    assert str(BookKeeperError("gone")) == "gone"
    assert str(BookKeeperError("gone", entry_id=0)) == "gone (entry 0)"


def test_families() -> None:
    assert issubclass(InvalidArgumentError, ValueError)
    assert errors.MetadataUnavailableError.retriable
    assert not OutcomeUnknownError.retriable
    assert errors.BookieTimeoutError.retriable
    assert not errors.WireFormatError.retriable
