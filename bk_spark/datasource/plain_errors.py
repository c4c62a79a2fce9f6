"""Shows this package's errors to Spark users as text, without a traceback.

Spark prints a Python error as a traceback with the text below it. The text says what is wrong and what to do;
forty lines of traceback above would hide it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from bk_spark.protocol.errors import BookKeeperError

_LOG: Final = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def plain_errors(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function that Spark calls: our errors lose traceback and cause, which go to the debug log."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except BookKeeperError as error:
            _LOG.debug("%s failed", function.__qualname__, exc_info=True)
            raise error.with_traceback(None) from None

    return call


def plain_errors_in(function: Callable[_P, Iterator[_T]]) -> Callable[_P, Iterator[_T]]:
    """Like :func:`plain_errors`, for a generator function."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        try:
            yield from function(*args, **kwargs)
        except BookKeeperError as error:
            _LOG.debug("%s failed", function.__qualname__, exc_info=True)
            raise error.with_traceback(None) from None

    return call
