"""What each part of the bookie is to be made with, taken from the one configuration."""

from __future__ import annotations

import functools

from bookie_server.config.config import BookieConfig
from bookie_server.disks.file_limit import last_indexable_entry
from bookie_server.disks.open_files import share_open_files
from bookie_server.identity.cookies import current_directory
from bookie_server.net.common.limits import NetConfig
from bookie_server.storage.directories import LedgerDirectories
from bookie_server.storage.journal.journals import JournalsConfig
from bookie_server.storage.ledger_storage import StorageConfig

#: Sockets are read again when so little of what stopped it is left.
_LOW_SHARE = 3


def ledger_directories(config: BookieConfig) -> LedgerDirectories:
    return LedgerDirectories(
        [current_directory(directory) for directory in config.ledger_directories],
        [current_directory(directory) for directory in config.index_directories],
    )


def journal_directories(config: BookieConfig) -> tuple[str, ...]:
    return tuple(current_directory(directory) for directory in config.journal_directories)


def storage_config(config: BookieConfig) -> StorageConfig:
    journals = JournalsConfig(
        directories=journal_directories(config),
        max_file_bytes=config.journal_max_bytes,
        preallocate_bytes=config.journal_preallocate_bytes,
        max_backups=config.journal_max_backups,
        remove_from_page_cache=config.journal_remove_from_page_cache,
        max_memory_bytes=config.journal_max_memory_bytes,
        sync_data=config.journal_sync_data,
        page_cache_flush_interval_ms=config.journal_page_cache_flush_interval_ms,
        adaptive_group_writes=config.journal_adaptive_group_writes,
        max_group_wait_ms=config.journal_max_group_wait_ms,
        buffered_writes_threshold_bytes=config.journal_group_bytes,
        buffered_entries_threshold=config.journal_group_entries,
        flush_when_queue_empty=config.journal_flush_when_queue_empty,
    )
    open_files = share_open_files()
    return StorageConfig(
        journals=journals,
        entry_log_size_limit_bytes=config.entry_log_size_limit_bytes,
        write_cache_bytes=config.write_cache_bytes,
        index_cache_bytes=config.index_cache_bytes,
        descriptor_limit=config.descriptor_limit,
        flush_interval_ms=config.flush_interval_ms,
        open_index_files=open_files.index_files,
        open_entry_logs=open_files.entry_logs,
        find_last_entry=functools.partial(
            last_indexable_entry, [current_directory(directory) for directory in config.index_directories]
        ),
    )


def net_config(config: BookieConfig) -> NetConfig:
    return NetConfig(
        max_frame_bytes=config.max_frame_bytes,
        max_batch_read_bytes=config.max_batch_read_bytes,
        max_adds_in_progress=config.max_adds_in_progress,
        max_reads_in_progress=config.max_reads_in_progress,
        max_pending_adds=config.max_pending_adds,
        max_pending_reads=config.max_pending_reads,
        adds_high_bytes=config.journal_max_memory_bytes,
        adds_low_bytes=config.journal_max_memory_bytes // _LOW_SHARE,
    )
