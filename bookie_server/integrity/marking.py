"""Marks ledgers as limbo before a bookie that may have lost data serves anybody. Source: compatibility.md §5.14.

Every ledger whose metadata name this bookie gets the mark, in the header of its index file, which is created if it is
lost. A ledger that is not closed and has this bookie in its last segment is fenced, too: the bookie may have answered a
fence, or an add, that it does not remember. It must not take part in any vote about the end of the ledger again.

Nothing is decided in memory. A start that ends early marks the same ledgers again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Final

import numpy as np

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.errors import CorruptFileError, MetadataFormatError
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bookie_server.config.config import BookieConfig
from bookie_server.gc.collection_steps import READS_AT_ONCE
from bookie_server.identity.cluster_identity import ClusterIdentity
from bookie_server.identity.cookies import check_cookies, current_directories
from bookie_server.identity.dirty import may_have_lost
from bookie_server.integrity.limbo_check import votes_about_end
from bookie_server.integrity.own_cluster_reads import own_cluster_reads
from bookie_server.storage.disk import files
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.entrylog.entry_log import LAST_LOG_ID
from bookie_server.storage.entrylog.entry_log_writer import EntryLogIds
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from bookie_server.storage.index.index_pointers import highest_log_id
from bookie_server.storage.journal.log_mark import forget_marks
from bookie_server.storage.journal.named_logs import highest_named_log

_LOG: Final = logging.getLogger(__name__)
#: Ledgers after which index files are synced.
_SYNCED_AT_ONCE: Final = 2048
#: Entry logs that may have been lost since ``lastId`` was written. A location beyond is damaged.
_MOST_LOST_LOGS: Final = 1 << 20


def check_identity(zookeeper: ZooKeeper, config: BookieConfig) -> ClusterIdentity:
    """Check that directories, bookie id and cluster belong together. Mark ledgers if data may be lost, and
    ``dataIntegrityChecking`` is on. Blocks.

    Raises
    ------
    CookieMismatchError
        If they do not belong together, or directories were lost and no operator has allowed that.
    MetadataError
        If ZooKeeper does not answer, or the metadata of a ledger cannot be understood.
    CorruptFileError
        If a file of the directories cannot be understood, also if nobody knows how the last run synced.
    OSError
        If a ledger could not be marked, or a directory not be stamped.
    """
    if not config.data_integrity_checking:
        return check_cookies(zookeeper, config)
    prepare = functools.partial(_mark_after_loss, config, zookeeper)
    identity = check_cookies(zookeeper, config, prepare if config.data_integrity_stamp_missing_cookies else None)
    if may_have_lost(current_directories(config.ledger_directories)):
        _mark_ledgers(config, zookeeper, identity, "the last run did not sync its journal, and its stop was not clean")
    return identity


def _mark_after_loss(
    config: BookieConfig, zookeeper: ZooKeeper, identity: ClusterIdentity, lost: Sequence[str]
) -> None:
    """Make a start safe though the directories ``lost`` (as configured) lost everything.

    The marks of lost journals go back to the beginning, because they name files that are gone.
    """
    journals = {number for number, directory in enumerate(config.journal_directories) if directory in lost}
    if journals:
        ledger_directories = current_directories(config.ledger_directories)
        forget_marks(ledger_directories, len(config.journal_directories), journals)
    if any(directory in lost for directory in config.ledger_directories):
        _skip_lost_log_ids(config)
    _mark_ledgers(config, zookeeper, identity, f"{' and '.join(lost)} lost everything")


def _skip_lost_log_ids(config: BookieConfig) -> None:
    """Let no new entry log get the id of a lost one. Index files and journals still name it, so entries would look as
    if they were here. ``lastId`` is old in a directory that could not be written."""
    directories = current_directories(config.ledger_directories)
    indexes = current_directories(config.index_directories)
    ids = EntryLogIds(LedgerDirectories(directories, indexes))
    index = IndexFiles(indexes, lambda: indexes)
    limit = min(ids.last + _MOST_LOST_LOGS, LAST_LOG_ID - 1)
    ledger_ids = index.ledger_ids().tolist()
    ids.skip_to(max((highest_log_id(index.path(ledger_id), limit) for ledger_id in ledger_ids), default=-1))
    ids.skip_to(highest_named_log(current_directories(config.journal_directories)))


def _mark_ledgers(config: BookieConfig, zookeeper: ZooKeeper, identity: ClusterIdentity, why: str) -> None:
    """Mark every ledger that names this bookie."""
    _LOG.warning("%s: marking the ledgers of this bookie, so that it calls no entry absent that it may have lost", why)
    directories = current_directories(config.index_directories)
    files.sync_what_was_left(directories)
    index = IndexFiles(directories, lambda: directories)
    store = LedgerStore(zookeeper, config.metadata_service_uri)
    reads = own_cluster_reads(store, identity)
    marking = _Marking(index, identity.bookie_id)
    try:
        reads.begin()
        for ledger_ids in store.list_ledgers():
            # With the flat layout this is one list of all ledgers, and their metadata take much more memory.
            for first in range(0, len(ledger_ids), READS_AT_ONCE):
                for ledger_id, content in reads.contents(ledger_ids[first : first + READS_AT_ONCE]).items():
                    if content is not None:
                        marking.mark(ledger_id, _decoded(ledger_id, content))
        # The last list counts only if it was read in the session that was synced.
        reads.contents([0])
        index.sync()
    finally:
        index.close()
    _LOG.warning("%d ledgers are in limbo until they are checked, %d of them fenced", marking.marked, marking.fenced)


def _decoded(ledger_id: int, content: bytes) -> LedgerMetadata:
    try:
        return ledger_metadata.decode(content)
    except MetadataFormatError as error:
        raise MetadataFormatError(
            f"nobody knows whether ledger {ledger_id} names this bookie: {error.message}. Repair its metadata. "
            "If nobody needs the ledger, keep a copy of them and delete its znode"
        ) from error


class _Marking:
    def __init__(self, index: IndexFiles, bookie_id: str) -> None:
        self._index = index
        self._bookie_id = bookie_id
        self.marked = self.fenced = 0

    def mark(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        if not any(self._bookie_id in segment.ensemble for segment in metadata.segments):
            return
        try:
            found = self._index.read_header(ledger_id, replaying=True)
        except CorruptFileError as error:
            _LOG.error("ledger %d cannot be marked, its requests get I/O errors: %s", ledger_id, error)
            return
        votes = votes_about_end(metadata, self._bookie_id)
        header = IndexHeader(
            (found.master_key if found is not None else b"") or _key_of(metadata),
            votes or (found is not None and found.fenced),
            None if found is None else found.explicit_lac,
            limbo=True,
        )
        self.marked += 1
        self.fenced += votes
        if header != found:
            nothing = np.empty(0, np.int64)
            self._index.write(ledger_id, header, nothing, nothing)
            if self.marked % _SYNCED_AT_ONCE == 0:
                self._index.sync()


def _key_of(metadata: LedgerMetadata) -> bytes:
    """The key of the ledger. Empty, if its metadata have no password: then it takes the first one."""
    return b"" if metadata.password is None else master_key(metadata.password)
