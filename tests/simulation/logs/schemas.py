"""Columns of batches: some batches have columns that the log's schema lacks, and commits merge them into it.

What must hold after every change: versions of the schema only grow, the rest of the settings stays, and each segment
names a version that readers find, which holds the columns of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bk_spark.log.formats.schema_merge import Names, fields_of, merged, same_fields, schema_json_of
from bk_spark.log.formats.segment import Segment
from bk_spark.log.formats.settings import LogSettings, decode_settings
from tests.simulation.logs.ledger_rules import ListWatch, require
from tests.support.zookeeper_model import ZooKeeperModel

if TYPE_CHECKING:
    from tests.simulation.logs.invariants import Row

_NAMES: Final = Names()


def schema_of(**types: str) -> str:
    """A schema with these columns."""
    fields = [{"name": name, "type": one, "nullable": True, "metadata": {}} for name, one in types.items()]
    return schema_json_of(fields)


FIRST_SCHEMA: Final = schema_of(number="integer")


def columns_of(app: str, batch_id: int) -> str | None:
    """The columns of a batch that are to be merged, the same for every run. None: it has those of version 0."""
    salt = sum(app.encode()) + batch_id
    if salt % 3 == 0:
        return None
    added = {f"c{(salt + step) % 5}": ("float", "double")[batch_id % 2] for step in range(salt % 2)}
    return schema_of(number=("integer", "long")[salt % 4 == 1], **added)


def settings_of(zk: ZooKeeperModel, log: ListWatch) -> LogSettings:
    znode = zk.read(log.paths.settings)
    require(znode is not None, "the settings are gone before the log's identity")
    assert znode is not None
    log_id, settings = decode_settings(znode.data, log.paths.settings)
    require(log_id == log.paths.log_id, f"settings of log id {log_id}")
    return settings


def check_settings(zk: ZooKeeperModel, log: ListWatch) -> None:
    """Versions of the schema only grow, and nothing else changes."""
    settings, before = settings_of(zk, log), log.settings
    log.settings = settings
    if before is None:
        return
    assert settings.schemas is not None
    assert before.schemas is not None
    same = ("quorum", "digest_type", "entry_format", "password_check", "instance_id")
    require(all(getattr(settings, name) == getattr(before, name) for name in same), f"{before} became {settings}")
    old = before.schemas.changes
    require(
        settings.schemas.first_json == before.schemas.first_json and settings.schemas.changes[: len(old)] == old,
        f"versions of the schema are lost: {old} became {settings.schemas.changes}",
    )


def check_rows(zk: ZooKeeperModel, log: ListWatch, segment: Segment, rows: list[Row]) -> None:
    """Readers find the segment's version, and it holds the columns of its rows."""
    settings = settings_of(zk, log)
    assert settings.schemas is not None
    require(segment.schema_version <= settings.schema_version, f"{segment} names a version that readers cannot find")
    fields = fields_of(settings.schemas.at(segment.schema_version))
    for row in rows:
        needed = fields_of(columns_of(row.app, row.batch_id) or FIRST_SCHEMA)
        require(same_fields(merged(fields, needed, _NAMES), fields, _NAMES), f"{segment} lacks columns of {row}")
