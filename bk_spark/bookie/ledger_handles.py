"""Opens the handles of ledgers, and keeps track of open ones."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final
from weakref import WeakSet

from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.metadata.ledger_store import CreateWith
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.bookie.writing.recovery import recover_ledger
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, UnauthorizedError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.quorum import Quorum

#: A handle takes some kilobytes: it holds metadata and no connection.
_MAX_READ_HANDLES: Final = 1024


class LedgerHandles:
    """Creates, opens and recovers the ledgers of one session. Single event loop."""

    def __init__(self, session: ClusterSession) -> None:
        self.session = session
        self._read_access = ReadAccess.of(session.services, session.pool, session.pool_v3, session.config)
        #: Write handles that are still referenced. Some may be closed.
        self._writing: WeakSet[WriteHandle] = WeakSet()
        #: The handles that :meth:`known` returned last.
        self._known: OrderedDict[tuple[int, bytes], ReadHandle] = OrderedDict()

    async def create(
        self,
        quorum: Quorum,
        digest_type: DigestType,
        password: bytes,
        custom_metadata: Mapping[str, bytes] | None,
        create_with: CreateWith | None,
        ledger_id: int | None = None,
        *,
        deferred_sync: bool,
        ensemble: Sequence[str] | None = None,
    ) -> WriteHandle:
        """Create a ledger and return its handle, connected to its bookies.

        Raises NotEnoughBookiesError, InvalidArgumentError for an ``ensemble`` that does not fit the quorum, and the
        errors of :meth:`LedgerStore.create`. If the handle cannot start, the ledger stays behind, open and empty.
        """
        session = self.session
        if ensemble is None:
            ensemble = await session.services.choose_ensemble(quorum)
        elif len(ensemble) != quorum.ensemble_size or len(set(ensemble)) != len(ensemble):
            raise InvalidArgumentError(
                f"ensemble must name {quorum.ensemble_size} different bookies, not {', '.join(ensemble) or 'none'}"
            )
        metadata = LedgerMetadata(
            quorum,
            (Segment(0, tuple(ensemble)),),
            digest_type=digest_type,
            password=password,
            custom_metadata=dict(custom_metadata or {}),
        )
        ledger_id, stored = await session.services.create(metadata, create_with, ledger_id)
        handle = WriteHandle(
            ledger_id,
            stored,
            digest_type,
            password,
            session.services,
            session.pool,
            session.config,
            pool_v3=session.pool_v3,
            deferred_sync=deferred_sync,
        )
        self._writing.add(handle)
        session.services.counts.ledgers_created += 1
        try:
            await handle.start()
        except BaseException:
            await handle.abandon()
            raise
        return handle

    async def open_for_reading(self, ledger_id: int, password: bytes = b"", *, read_lac: bool = True) -> ReadHandle:
        """Open a ledger without fencing it. A writer of the ledger continues.

        Parameters
        ----------
        ledger_id
            The ledger to read.
        password
            The password of the ledger.
        read_lac
            Ask bookies for the last add confirmed of an open ledger. If false, no bookie is asked, and only entries
            that are known to exist can be read.

        Returns
        -------
        ReadHandle or BlockingReader
            A reader of the ledger up to its last add confirmed.

        Raises
        ------
        NoSuchLedgerError
            If there is no such ledger.
        UnauthorizedError
            If the password is wrong.
        EntryUnknownError
            If the ledger is open and too few of its bookies answer.
        """
        handle = self._reader(ledger_id, (await self.session.services.read(ledger_id)).metadata, password)
        if read_lac:
            await handle.read_last_add_confirmed()
        return handle

    async def known(self, ledger_id: int, password: bytes) -> ReadHandle:
        """Return a handle for entries that are known to exist. It may have been opened long ago.

        Its metadata may be old. A reader of known entries reads them again when it must
        (:mod:`bk_spark.protocol.ledger.reading.reader`).
        """
        key = (ledger_id, password)
        handle = self._known.get(key)
        if handle is None:
            handle = self._known[key] = await self.open_for_reading(ledger_id, password, read_lac=False)
        self._known.move_to_end(key)
        if len(self._known) > _MAX_READ_HANDLES:
            self._known.popitem(last=False)
        return handle

    async def recover_and_open(self, ledger_id: int, password: bytes = b"") -> ReadHandle:
        """Fence a ledger, close it at its last entry, and open it for reading. This ends a writer of the ledger.

        Parameters
        ----------
        ledger_id
            The ledger to recover. A closed ledger is only opened.
        password
            The password of the ledger.

        Returns
        -------
        ReadHandle or BlockingReader
            A reader of the closed ledger.

        Raises
        ------
        NoSuchLedgerError
            If there is no such ledger.
        UnauthorizedError
            If the password is wrong.
        EntryUnknownError
            If too few of its bookies answer.
        NotEnoughBookiesError
            If entries must be copied and fewer bookies are writable than the ensemble needs.
        """
        session = self.session
        metadata = (await session.services.read_latest(ledger_id)).metadata
        digest_type = _authorize(ledger_id, metadata, password)
        if metadata.state is not LedgerState.CLOSED:
            own_pool = session.new_pool()
            try:
                metadata = await recover_ledger(
                    ledger_id, digest_type, password, session.services, own_pool, session.config
                )
            finally:
                await own_pool.close()
        return self._reader(ledger_id, metadata, password)

    async def abandon(self) -> None:
        """Abandon all ledgers that are being written."""
        for handle in list(self._writing):
            await handle.abandon()

    def _reader(self, ledger_id: int, metadata: LedgerMetadata, password: bytes) -> ReadHandle:
        digest_type = _authorize(ledger_id, metadata, password)
        self.session.services.counts.ledgers_opened += 1
        return ReadHandle(ledger_id, metadata, digest_type, password, self._read_access)


def _authorize(ledger_id: int, metadata: LedgerMetadata, password: bytes) -> DigestType:
    """Check the password and return the ledger's digest type. Metadata from before 4.2 have neither."""
    if metadata.digest_type is None or metadata.password is None:
        return DigestType.CRC32
    if not hmac.compare_digest(metadata.password, password):
        what = "wrong ledger password" if password else "the ledger has a password, and none was given"
        raise UnauthorizedError(what, ledger_id=ledger_id)
    return metadata.digest_type
