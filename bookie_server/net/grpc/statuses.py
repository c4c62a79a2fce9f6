"""The statuses of gRPC that say what our errors say."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import grpc

from bk_spark.protocol import errors
from bk_spark.protocol.errors import BookKeeperError

_OF_ERRORS: Final[Sequence[tuple[type[BookKeeperError], grpc.StatusCode]]] = (
    (errors.NoSuchLogError, grpc.StatusCode.NOT_FOUND),
    (errors.LogExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (errors.UnauthorizedError, grpc.StatusCode.PERMISSION_DENIED),
    (errors.LogRangeGoneError, grpc.StatusCode.OUT_OF_RANGE),
    (errors.LogTailOpenError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.LogFencedError, grpc.StatusCode.ABORTED),
    (errors.InvalidArgumentError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.PeerError, grpc.StatusCode.UNAVAILABLE),
    (errors.MetadataError, grpc.StatusCode.UNAVAILABLE),
)
#: Those that the admin API raises. Others are INTERNAL.
_OF_HTTP: Final = {
    HTTPStatus.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}


def status_of(error: BookKeeperError) -> grpc.StatusCode:
    """Return the status that says what ``error`` says."""
    for kind, status in _OF_ERRORS:
        if isinstance(error, kind):
            return status
    return grpc.StatusCode.INTERNAL


def status_of_http(status: HTTPStatus) -> grpc.StatusCode:
    """Return the status that says what one of HTTP says."""
    return _OF_HTTP.get(status, grpc.StatusCode.INTERNAL)
