"""The schema of a log grows with the rows that need it. No I/O.

A commit that merges columns reads the settings, and writes them in the transaction that adds its rows, at the version
that it read. So a version of the schema and the first rows that name it are published at once, and a commit that fails
leaves the schema as it was. If two commits grow the schema at once, one fails on the version, reads again, and merges
into the schema of the other.

Settings that would make the transaction too large for ZooKeeper are written in a transaction before it. Then a commit
that fails may leave a version that no segment names, which harms nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.log.core.plan import Readings, StaleError
from bk_spark.log.formats.message import CommitRequest
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.schema_merge import Names
from bk_spark.log.formats.settings import LogSettings, decode_settings, encode_settings
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.znodes import CheckOp, SetOp, TransactionOp

#: A request to ZooKeeper must stay below 1 MiB, and an application may take half of it.
MAX_INLINE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Growth:
    """The version of the schema that a commit's rows have, and the operations that make it, before the commit's
    transaction and in it."""

    version: int = 0
    preparations: tuple[tuple[TransactionOp, ...], ...] = ()
    operations: tuple[TransactionOp, ...] = ()


def needs_settings(request: CommitRequest) -> bool:
    """Whether a commit depends on the settings. Rows of version 0, which every log has, do not."""
    return request.merge_schema is not None or request.schema_version > 0


def growth(readings: Readings, paths: LogPaths, request: CommitRequest, time_ms: int) -> Growth:
    """Return the version for the rows of ``request``.

    Raises InvalidArgumentError if no schema holds both without loss, or if there is no such version, and
    MetadataFormatError.
    """
    if not needs_settings(request):
        return Growth()
    znode = readings.get(paths.settings)
    if znode is None:
        raise StaleError(f"the settings {paths.settings} are missing")
    log_id, settings = decode_settings(znode.data, paths.settings)
    if log_id != paths.log_id:
        raise StaleError(f"the settings {paths.settings} are another log's")
    if request.merge_schema is None:
        return Growth(_known_version(settings, request.schema_version, paths.name))
    grown = settings.grown(request.merge_schema, time_ms, Names(request.case_sensitive), paths.name)
    if grown is settings:
        return Growth(settings.schema_version)
    data = encode_settings(log_id, grown)
    write = SetOp(paths.settings, data, znode.version)
    if len(data) <= MAX_INLINE_BYTES:
        return Growth(grown.schema_version, (), (write,))
    preparation = (CheckOp(paths.identity, -1), write)
    return Growth(grown.schema_version, (preparation,), (CheckOp(paths.settings, znode.version + 1),))


def _known_version(settings: LogSettings, version: int, log: str) -> int:
    if version > settings.schema_version:
        raise InvalidArgumentError(
            f"the rows have version {version} of the schema of log {log}, which has versions 0 to "
            f"{settings.schema_version}: open the log again, and write with a version that it has"
        )
    return version
