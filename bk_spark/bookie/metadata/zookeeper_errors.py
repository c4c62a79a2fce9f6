"""Translates kazoo's errors into those of this package."""

from __future__ import annotations

from typing import Final

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError as KazooNodeExistsError,
    NoNodeError as KazooNoNodeError,
    NotEmptyError,
    SessionExpiredError,
)

from bk_spark.protocol.errors import MetadataConflictError, MetadataError, NodeExistsError, NoNodeError

#: No server has answered. A read can be sent again; a change may have taken effect.
CONNECTION_LOST: Final = (ConnectionLoss, SessionExpiredError, ConnectionClosedError)


def refused_request(error: KazooException, path: str | None = None) -> MetadataError:
    """Return the error for a request that a server has refused. ``path`` was to be changed; None for a read."""
    match error:
        case KazooNoNodeError():
            return NoNodeError(
                "znode does not exist" if path is None else f"znode {path} (or its parent) does not exist"
            )
        case KazooNodeExistsError():
            return NodeExistsError(f"znode {path} already exists")
        case BadVersionError():
            return MetadataConflictError(f"znode {path} was changed by another client")
        case NotEmptyError():
            return MetadataConflictError(f"znode {path} has children")
        case NoAuthError():
            what = "read a znode" if path is None else f"change {path}"
            return MetadataError(
                f"ZooKeeper does not let this user {what}: its access list names others. Set zkDigestFile to a file "
                "with the user and password that the cluster's znodes were created with"
            )
    what = "a request" if path is None else f"to change {path}"
    return MetadataError(f"ZooKeeper refused {what}: {type(error).__name__}: {error}")
