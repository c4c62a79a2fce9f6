"""Creates the znodes of a new BookKeeper cluster, as ``initnewcluster`` of Apache's shell does.

====================================  =====================================================
``<root>``                            empty
``<root>/available``                  empty; bookies register below it
``<root>/available/readonly``         empty; read-only bookies register below it
``<root>/INSTANCEID``                 a UUID in UTF-8, no newline
``<root>/LAYOUT``                     names the ledger manager, see ledger_paths
====================================  =====================================================

All persistent, with open ACLs. Source: compatibility.md §3.1, §3.3.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import InvalidArgumentError, NodeExistsError, OutcomeUnknownError
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.znodes import CreateOp, TransactionConflictError

_LOG = logging.getLogger(__name__)

#: The default ledger manager of a new cluster, the same as Apache's.
DEFAULT_LAYOUT: Final = LedgerManager.HIERARCHICAL.value


def ledger_manager(layout: str | None) -> LedgerManager:
    """Return the ledger manager called ``layout`` (as in metadata service URIs). None is the default.

    Raises :class:`InvalidArgumentError` for any other name.
    """
    name = DEFAULT_LAYOUT if layout is None else layout
    try:
        return LedgerManager(name)
    except ValueError:
        known = ", ".join(manager.value for manager in LedgerManager)
        raise InvalidArgumentError(f"ledger layout {name!r} is unknown; use one of {known}") from None


def init_cluster(zk: ZooKeeper, root: str, layout: str | None = None) -> str:
    """Create a new cluster under ``root`` in one transaction. Return its instance id.

    Parents of ``root`` are created as needed. Raises :class:`NodeExistsError` if ``root`` exists (an existing cluster
    is never changed), :class:`InvalidArgumentError` for an unknown ``layout``, and :class:`OutcomeUnknownError` if the
    connection was lost and the outcome is unknown.
    """
    manager = ledger_manager(layout)
    instance_id = str(uuid.uuid4())
    parent = root.rpartition("/")[0]
    if parent:
        zk.ensure_path(parent)
    try:
        zk.transaction(
            [
                CreateOp(root),
                CreateOp(f"{root}/available"),
                CreateOp(f"{root}/available/readonly"),
                CreateOp(f"{root}/INSTANCEID", instance_id.encode()),
                CreateOp(f"{root}/LAYOUT", manager.layout),
            ]
        )
    except TransactionConflictError as error:
        if zk.exists(root) is None:
            raise
        raise _exists(root) from error
    except OutcomeUnknownError as error:
        # The instance id is unique, so it shows whether the transaction took effect.
        zk.sync(root)
        found = zk.get(f"{root}/INSTANCEID")
        if found is None:
            raise
        if found.data != instance_id.encode():
            raise _exists(root) from error
    _LOG.info("new cluster %s under %s", instance_id, root)
    return instance_id


def read_instance_id(zk: ZooKeeper, root: str) -> str | None:
    """Return the id of the cluster at ``root``, or None if it has none. Raises MetadataUnavailableError."""
    path = f"{root}/INSTANCEID"
    # It never changes, so only its absence may be news that a lagging server does not have yet.
    found = zk.get(path) or zk.get_latest(path)
    return None if found is None else found.data.decode(errors="replace")


def require_no_cluster(zk: ZooKeeper, root: str) -> None:
    """Raise NodeExistsError if ``root`` exists, as :func:`init_cluster` does."""
    if zk.get_latest(root) is not None:
        raise _exists(root)


def _exists(root: str) -> NodeExistsError:
    return NodeExistsError(
        f"znode {root} already exists. It may belong to a cluster, whose ledgers would be lost. Use another root"
    )
