"""Changes of znodes that prove that a session lives, that end whatever reply is lost, and that leave nothing behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import (
    MetadataConflictError,
    MetadataUnavailableError,
    NoNodeError,
    OutcomeUnknownError,
    SessionLostError,
)
from bk_spark.protocol.metadata.znodes import (
    CheckOp,
    CreateOp,
    SetOp,
    TransactionConflictError,
    TransactionOp,
    Znode,
)

#: How often a change is tried while other clients change the same znode, or replies are lost.
ATTEMPTS: Final = 8
#: What other clients can cause by changes of their own.
_RACES: Final = frozenset({"NodeExistsError", "NoNodeError", "BadVersionError"})


def prove_and_change(zk: ZooKeeper, proof: str | None, operations: Sequence[TransactionOp]) -> None:
    """Apply all operations in one transaction, if the ephemeral znode ``proof`` exists.

    Raises SessionLostError if it does not exist, else what :meth:`ZooKeeper.transaction` raises. With ``proof`` None
    nothing is checked.
    """
    checked = () if proof is None else (CheckOp(proof, -1),)
    try:
        zk.transaction([*checked, *operations])
    except TransactionConflictError as conflict:
        if conflict.operation.path == proof:
            raise SessionLostError(
                f"{proof} does not exist. The session with ZooKeeper has ended, and with it the lock or the vote. "
                "Nothing was changed"
            ) from conflict
        raise


def put(zk: ZooKeeper, path: str, content: Callable[[Znode | None], bytes], proof: str | None = None) -> None:
    """Set ``path`` to ``content(the znode found there)``. Create it and its parents if they are missing.

    If another client changes the znode, or a reply is lost, this reads again and repeats. So after a lost reply the
    content may be set twice.

    Raises
    ------
    SessionLostError
        If ``proof`` is a path that does not exist. Nothing was changed.
    MetadataConflictError
        If other clients changed the znode at each attempt.
    MetadataUnavailableError
        If ZooKeeper does not answer. The content may or may not be set.
    """
    found = zk.get(path)
    last: MetadataConflictError | OutcomeUnknownError | None = None
    for _ in range(ATTEMPTS):
        try:
            if found is None:
                zk.ensure_path(path.rpartition("/")[0])
            data = content(found)
            operation = CreateOp(path, data) if found is None else SetOp(path, data, found.version)
            return prove_and_change(zk, proof, [operation])
        except TransactionConflictError as conflict:
            if conflict.reason not in _RACES:
                raise
            last = conflict
        except (NoNodeError, OutcomeUnknownError) as error:
            # NoNodeError: another client deleted an empty parent.
            last = error
        found = zk.get_latest(path)
    if isinstance(last, OutcomeUnknownError):
        raise MetadataUnavailableError(f"{path} could not be set: {last.message}") from last
    raise MetadataConflictError(f"{path} keeps being changed by other clients; try again") from last


def delete_empty_parents(zk: ZooKeeper, path: str, root: str) -> None:
    """Delete the znodes above ``path``, and below ``root``, for as long as they are empty.

    Those that stay, because no answer comes or another client needs them, do no harm.
    """
    with contextlib.suppress(MetadataConflictError, MetadataUnavailableError):
        while len(path := path.rpartition("/")[0]) > len(root):
            found = zk.exists(path)
            # A deletion that fails costs a transaction, too, which ZooKeeper writes to its disk.
            if found is not None and found.children:
                return
            if found is not None:
                zk.delete(path)
