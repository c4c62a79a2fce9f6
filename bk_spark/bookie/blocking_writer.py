"""The blocking handles of a ledger being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.writing.adv_write_handle import AdvWriteHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_H = TypeVar("_H", bound=WriteHandle | AdvWriteHandle)


class _BlockingHandle(Generic[_H]):
    """What both writers have in common."""

    def __init__(self, thread: LoopThread, handle: _H) -> None:
        self._thread = thread
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer has stored them."""
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The id of the last confirmed entry, -1 if there is none. With deferred sync only forced entries are
        confirmed.
        """
        return self._handle.last_add_confirmed

    @property
    def last_add_acknowledged(self) -> int:
        """The id of the last entry up to which an ack quorum holds all entries, synced or not. -1 if there is none."""
        return self._handle.last_add_acknowledged

    @property
    def length(self) -> int:
        """The payload bytes of all confirmed entries."""
        return self._handle.length

    @property
    def error(self) -> BookKeeperError | None:
        """The error that ended this writer, or None."""
        return self._handle.error

    def flush(self) -> int:
        """Wait until all appended entries are acknowledged.

        Returns
        -------
        int
            The last add confirmed.

        Raises
        ------
        LedgerFencedError
            If another client has recovered the ledger.
        EntryGapError
            If entries wait for lower ids that nobody appends in time. Only where the caller chooses the ids.
        PeerError
            If too many bookies failed. The writer has ended.
        """
        return self._thread.run(self._handle.flush())

    def wait_confirmed(self, entry_id: int) -> None:
        """Wait until an entry is confirmed.

        Parameters
        ----------
        entry_id
            The entry. It must have been appended.

        Raises
        ------
        InvalidArgumentError
            If the entry was not appended.
        LedgerFencedError
            If another client has recovered the ledger.
        PeerError
            If too many bookies failed. The writer has ended.
        """
        self._thread.run(self._handle.wait_confirmed(entry_id))

    def force(self) -> int:
        """Flush, and let every bookie of the ensemble sync its entries. With deferred sync, this confirms them.

        Returns
        -------
        int
            The last add confirmed.

        Raises
        ------
        LedgerFencedError
            If another client has recovered the ledger.
        PeerError
            If a bookie could not sync. With deferred sync the writer has ended.
        """
        return self._thread.run(self._handle.force())

    def close(self) -> LedgerMetadata:
        """Flush (with deferred sync: force), and close the ledger at its last entry. May be repeated.

        Returns
        -------
        LedgerMetadata
            The final metadata.

        Raises
        ------
        LedgerFencedError
            If another client has closed the ledger at another entry.
        EntryGapError
            If entries wait for lower ids. The writer stays open.
        MetadataUnavailableError
            If ZooKeeper does not answer. The outcome is unknown. Retry.
        """
        return self._thread.run(self._handle.close())

    def abandon(self) -> None:
        """Stop writing without closing the ledger. It stays open until a client recovers it."""
        self._thread.finish(self._handle.abandon())


class BlockingWriter(_BlockingHandle[WriteHandle]):
    """Appends entries to one ledger, with the ids 0, 1, 2 and so on. For one thread at a time.

    Entries are sent in the background: ``append`` and ``append_many`` return when the entries are on their way, and
    wait while too many are. ``flush`` waits until they are acknowledged. Any failure ends the writer, and every later
    call raises the same error. ``last_add_confirmed`` then tells which entries are safe.

    Made by ``create_ledger`` of a connection, or ``create`` of a client.
    """

    @property
    def last_add_pushed(self) -> int:
        """The id of the last appended entry, -1 if there is none."""
        return self._handle.last_add_pushed

    def append(self, payload: Buffer) -> int:
        """Append one entry.

        Parameters
        ----------
        payload
            The bytes of the entry.

        Returns
        -------
        int
            The entry's id.

        Raises
        ------
        InvalidArgumentError
            If the entry is larger than a bookie accepts.
        LedgerFencedError
            If another client has recovered the ledger.
        LedgerClosedError
            If this writer was closed or abandoned.
        PeerError
            If too many bookies failed. The writer has ended.
        """
        return self._thread.run(self._handle.append(payload))

    def append_many(self, payloads: Payloads | Sequence[Buffer]) -> int:
        """Append entries in order. This is the fastest way.

        Parameters
        ----------
        payloads
            The bytes of each entry. They must not change before the call returns.

        Returns
        -------
        int
            The id of the last entry.

        Raises
        ------
        InvalidArgumentError
            If an entry is larger than a bookie accepts. No entry was appended.
        LedgerFencedError
            If another client has recovered the ledger.
        LedgerClosedError
            If this writer was closed or abandoned.
        PeerError
            If too many bookies failed. The writer has ended.
        """
        return self._thread.run(self._handle.append_many(payloads))


class BlockingAdvWriter(_BlockingHandle[AdvWriteHandle]):
    """Appends entries to one ledger, with ids that the caller chooses. Several threads may use it at once.

    The ids are 0, 1, 2 and so on, in any order. An entry that comes early waits here for all entries with lower ids.
    Any failure ends the writer, and every later call raises the same error.

    Made by ``create_ledger_adv`` of a connection, or ``create_adv`` of a client.
    """

    def append(self, entry_id: int, payload: Buffer) -> None:
        """Append one entry.

        Parameters
        ----------
        entry_id
            The entry's id, from 0 on.
        payload
            The bytes of the entry.

        Raises
        ------
        DuplicateEntryError
            If the id was used before.
        EntryGapError
            If there is no room to wait for lower ids, and nobody appends these within ``entry_gap_timeout_ms``.
        InvalidArgumentError
            If the entry is larger than a bookie accepts.
        LedgerFencedError
            If another client has recovered the ledger.
        """
        self._thread.run(self._handle.append(entry_id, payload))

    def append_many(
        self, entry_ids: Sequence[int] | npt.NDArray[np.int64], payloads: Payloads | Sequence[Buffer]
    ) -> None:
        """Append entries. If an argument is wrong, no entry is appended.

        Parameters
        ----------
        entry_ids
            The entries' ids, from 0 on, in any order.
        payloads
            The bytes of each entry.

        Raises
        ------
        DuplicateEntryError
            If an id was used before.
        EntryGapError
            If there is no room to wait for lower ids, and nobody appends these within ``entry_gap_timeout_ms``.
        InvalidArgumentError
            If an entry is larger than a bookie accepts.
        LedgerFencedError
            If another client has recovered the ledger.
        """
        self._thread.run(self._handle.append_many(entry_ids, payloads))
