"""Directories whose index this bookie cannot read.

Apache's ``DbLedgerStorage`` keeps its index in two RocksDB databases, ``current/ledgers`` and ``current/locations``
(compatibility.md §5.7). Its entry logs are like ours, but without that index a bookie would answer "no such entry" for
all that they hold. Apache's converter puts the databases of the first directory aside. With several directories the
others keep theirs, and stay refused: their entry logs have the same ids, so locations would be ambiguous.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from bk_spark.protocol.errors import StorageError

_DATABASES: Final = ("ledgers", "locations")
#: Every RocksDB database has this file.
_ROCKSDB_FILE: Final = "CURRENT"


def rocksdb_index(directories: Sequence[str]) -> str | None:
    """The first RocksDB database in these ``current`` directories of ledgers and indexes; None if there is none."""
    databases = (os.path.join(directory, name) for directory in directories for name in _DATABASES)
    return next((each for each in databases if os.path.exists(os.path.join(each, _ROCKSDB_FILE))), None)


def require_own_index(directories: Sequence[str]) -> None:
    """Check ``current`` directories of ledgers and indexes. Raises StorageError if one has an index in RocksDB."""
    database = rocksdb_index(directories)
    if database is not None:
        raise StorageError(
            f"{database} is an index of Apache's DbLedgerStorage (RocksDB), which this bookie cannot read: it "
            "would answer 'no such entry' for acknowledged entries. Start Apache's bookie on these directories "
            "again, and replace it by a new bookie with empty directories. If there is only one ledger "
            "directory, Apache's shell can convert it (convert-to-interleaved-storage)"
        )
