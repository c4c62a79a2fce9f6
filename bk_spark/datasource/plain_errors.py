"""Errors of ours as a Spark user should see them: the text, without the stack of whoever raised it.

Spark shows a Python error as a traceback with its text below. The text says what is wrong and what to do;
the forty lines above it would only hide that.
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
    """For what Spark calls: errors of ours leave it without traceback and cause, which go to the debug log."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except BookKeeperError as error:
            _LOG.debug("%s failed", function.__qualname__, exc_info=True)
            raise error.with_traceback(None) from None

    return call


def plain_errors_in(function: Callable[_P, Iterator[_T]]) -> Callable[_P, Iterator[_T]]:
    """The same for a generator function."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        try:
            yield from function(*args, **kwargs)
        except BookKeeperError as error:
            _LOG.debug("%s failed", function.__qualname__, exc_info=True)
            raise error.with_traceback(None) from None

    return call
