"""A log's settings: ``<log>/settings``, message ``Settings``. They are fixed when the log is created. Only the schema
may grow, by a new version after the others.

The password itself is not stored, only a salted hash of the ledgers' master key. So a wrong password is refused before
any ledger is made with it.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.schema_history import MAX_SCHEMA_VERSIONS, SchemaChange, SchemaHistory, SchemaVersion
from bk_spark.log.formats.schema_merge import Names
from bk_spark.log.formats.znodes import log_id_of, parse
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError, UnauthorizedError
from bk_spark.protocol.quorum import Quorum

SETTINGS_VERSION: Final = 2
_WITHOUT_SCHEMA_CHANGES: Final = 1
MAX_SETTINGS_BYTES: Final = 512 * 1024
MAX_SCHEMA_BYTES: Final = MAX_SETTINGS_BYTES - 1024

_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
# About 5 ms. More would gain nothing: Apache's ledger metadata, in the same ZooKeeper, holds the password.
_ITERATIONS: Final = 10_000
_MAX_ITERATIONS: Final = 10_000_000
_MAX_INT64: Final = (1 << 63) - 1


class EntryFormat(enum.Enum):
    """What an entry of a log holds."""

    RAW = "raw"
    """One row: the bytes of its value."""
    ARROW = "arrow"
    """Many rows: an Arrow IPC stream."""


@dataclass(frozen=True, slots=True)
class PasswordCheck:
    """PBKDF2-HMAC-SHA256 over the master key."""

    salt: bytes = field(repr=False)
    iterations: int
    hash: bytes = field(repr=False)

    @classmethod
    def of(cls, password: bytes) -> PasswordCheck:
        """Derive the hash with a new random salt. Takes some 5 ms, and next to nothing without a password."""
        salt = secrets.token_bytes(_SALT_BYTES)
        # An empty password is no secret. Queries over many logs without one should not spend milliseconds on each.
        iterations = _ITERATIONS if password else 1
        return cls(salt, iterations, _derive(password, salt, iterations))

    def matches(self, password: bytes) -> bool:
        """Whether the hash was derived from ``password``. The comparison takes the same time whatever its result."""
        return hmac.compare_digest(self.hash, _derive(password, self.salt, self.iterations))


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of a log. They are fixed when the log is created. Only the schema may grow.

    Parameters
    ----------
    quorum
        Ensemble size, write quorum and ack quorum of the log's ledgers.
    digest_type
        The checksum of each entry.
    entry_format
        What an entry holds.
    password_check
        A salted hash that identifies the password. The password itself is not stored.
    schemas
        For ``arrow``: the versions of the schema. For ``raw``: None.
    instance_id
        The id of the cluster that has the log's ledgers. None if the cluster has no id. It is set when the log is
        created.

    Raises
    ------
    InvalidArgumentError
        If the schema does not match the entry format, is too long, or is not valid JSON.
    """

    quorum: Quorum
    digest_type: DigestType
    entry_format: EntryFormat
    password_check: PasswordCheck
    schemas: SchemaHistory | None = None
    instance_id: str | None = None

    def __post_init__(self) -> None:
        if (self.entry_format is EntryFormat.ARROW) != (self.schemas is not None):
            raise InvalidArgumentError("a log of entryFormat arrow needs a schema, and one of entryFormat raw has none")
        if self.schemas is None:
            return
        if len(self.schemas.first_json.encode()) > MAX_SCHEMA_BYTES:
            raise InvalidArgumentError(f"the schema is longer than {MAX_SCHEMA_BYTES} bytes as JSON: use fewer columns")
        try:
            json.loads(self.schemas.first_json)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the schema is not valid JSON: {error}") from error

    @classmethod
    def create(
        cls,
        quorum: Quorum,
        digest_type: DigestType,
        entry_format: EntryFormat,
        password: bytes,
        schema_json: str | None = None,
    ) -> LogSettings:
        """Create the settings of a new log.

        Parameters
        ----------
        quorum
            Ensemble size, write quorum and ack quorum of the log's ledgers.
        digest_type
            The checksum of each entry.
        entry_format
            What an entry holds.
        password
            The password of the log's ledgers.
        schema_json
            For ``arrow``: the schema, in Spark's JSON form.

        Returns
        -------
        LogSettings
            The settings.
        """
        schemas = None if schema_json is None else SchemaHistory(schema_json)
        return cls(quorum, digest_type, entry_format, PasswordCheck.of(password), schemas)

    @property
    def schema_json(self) -> str | None:
        """The current version of the schema, in Spark's JSON form. None for ``raw``."""
        return None if self.schemas is None else self.schemas.current_json

    @property
    def schema_version(self) -> int:
        """The number of the current version of the schema. 0 until it grows, and for ``raw``."""
        return 0 if self.schemas is None else self.schemas.version

    def schema_versions(self) -> list[SchemaVersion]:
        """Return all versions of the schema.

        Returns
        -------
        list of SchemaVersion
            The versions, oldest first. Empty for ``raw``.
        """
        return [] if self.schemas is None else self.schemas.versions()

    def grown(self, schema_json: str, time_ms: int, names: Names, log_name: str) -> LogSettings:
        """Return settings whose current schema can hold rows with certain columns.

        Parameters
        ----------
        schema_json
            The columns of the rows, in Spark's JSON form.
        time_ms
            The time of the new version, in Unix milliseconds.
        names
            How names are compared.
        log_name
            The name of the log, for the error text.

        Returns
        -------
        LogSettings
            These settings if their current schema can hold the rows, or settings with one more version.

        Raises
        ------
        InvalidArgumentError
            If no schema can hold both without loss, or the versions take too many bytes. The error names the column
            and its types.
        """
        if self.schemas is None:
            raise InvalidArgumentError(
                f"log {log_name} has entryFormat {self.entry_format.value}, and only the schema of an arrow log grows: "
                "leave the option mergeSchema (merge_schema of Log.write) out"
            )
        schemas = self.schemas.grown(schema_json, time_ms, names, log_name)
        if schemas is self.schemas:
            return self
        settings = replace(self, schemas=schemas)
        if _message("0" * 32, settings).ByteSize() > MAX_SETTINGS_BYTES:
            raise InvalidArgumentError(
                f"the versions of the schema of log {log_name} take more than {MAX_SETTINGS_BYTES} bytes: write to a "
                "new log"
            )
        return settings

    def may_be_in(self, instance_id: str | None) -> bool:
        """Tell whether the log's ledgers may be in a cluster.

        Parameters
        ----------
        instance_id
            The id of the cluster. None if it has none.

        Returns
        -------
        bool
            Whether the log was created in this cluster, or in one without an id.
        """
        return self.instance_id in (None, instance_id)

    def check_cluster(self, instance_id: str | None, log_name: str) -> None:
        """Check that the log's ledgers are in a cluster. In another one their ids are those of other ledgers.

        Parameters
        ----------
        instance_id
            The id of the cluster. None if it has none.
        log_name
            The name of the log, for the error text.

        Raises
        ------
        InvalidArgumentError
            If the log was created in another cluster.
        """
        if self.may_be_in(instance_id):
            return
        ledgers = f"the ledgers of log {log_name} are in cluster {self.instance_id}"
        if instance_id is None:
            raise InvalidArgumentError(
                f"{ledgers}, and the cluster at metadataServiceUri has no id (its znode INSTANCEID is missing): "
                "correct metadataServiceUri. If it is right, the znode was lost: create it again, with this id in it"
            )
        raise InvalidArgumentError(
            f"{ledgers}, and metadataServiceUri names cluster {instance_id}: correct metadataServiceUri. Clusters that "
            "share a ZooKeeper need different roots for their logs (option logRoot). If metadataServiceUri is right, "
            "the cluster was made anew. Keep the log as long as its old cluster may come back; "
            "otherwise bkctl log delete frees its name"
        )

    def check_password(self, password: bytes, log_name: str) -> None:
        """Check a password.

        Parameters
        ----------
        password
            The password to check.
        log_name
            The name of the log, for the error text.

        Raises
        ------
        UnauthorizedError
            If the log was created with another password.
        """
        if self.password_check.matches(password):
            return
        remedy = "give the one it was made with (option password or passwordFile)"
        if not password:
            raise UnauthorizedError(f"log {log_name} has a password, and none was given: {remedy}")
        if self.password_check.matches(b""):
            remedy = "it was made without one, give none"
        raise UnauthorizedError(f"wrong password for log {log_name}: {remedy}")


_FORMAT_NUMBER: Final = {EntryFormat.RAW: pb.Settings.RAW, EntryFormat.ARROW: pb.Settings.ARROW}
_FORMAT_OF_NUMBER: Final = {number: entry_format for entry_format, number in _FORMAT_NUMBER.items()}


def encode_settings(log_id: str, settings: LogSettings) -> bytes:
    """Encode the znode's content. Format version 2 if the schema has grown, otherwise 1, which 0.1.0 reads."""
    return _message(log_id, settings).SerializeToString()


def _message(log_id: str, settings: LogSettings) -> pb.Settings:
    check, schemas = settings.password_check, settings.schemas
    changes = () if schemas is None else schemas.changes
    return pb.Settings(
        format_version=SETTINGS_VERSION if changes else _WITHOUT_SCHEMA_CHANGES,
        log_id=UUID(log_id).bytes,
        ensemble_size=settings.quorum.ensemble_size,
        write_quorum_size=settings.quorum.write_quorum_size,
        ack_quorum_size=settings.quorum.ack_quorum_size,
        digest_type=settings.digest_type.value,
        entry_format=_FORMAT_NUMBER[settings.entry_format],
        schema_json=None if schemas is None else schemas.first_json,
        password_check=pb.PasswordCheck(salt=check.salt, iterations=check.iterations, hash=check.hash),
        instance_id=settings.instance_id,
        schema_changes=[
            pb.SchemaChange(
                time_ms=one.time_ms,
                positions=[position for position, _ in one.columns],
                columns=[column for _, column in one.columns],
            )
            for one in changes
        ],
    )


def decode_settings(data: bytes, path: str) -> tuple[str, LogSettings]:
    """Decode log id and settings. Raises MetadataFormatError."""
    message = parse(pb.Settings(), data, path, "settings of a log", SETTINGS_VERSION, MAX_SETTINGS_BYTES)
    check = message.password_check
    if not 1 <= check.iterations <= _MAX_ITERATIONS or len(check.hash) != _HASH_BYTES:
        raise MetadataFormatError(f"settings of a log {path} hold a damaged password check")
    try:
        settings = LogSettings(
            Quorum(message.ensemble_size, message.write_quorum_size, message.ack_quorum_size),
            DigestType(message.digest_type),
            _FORMAT_OF_NUMBER[message.entry_format],
            PasswordCheck(check.salt, check.iterations, check.hash),
            _schemas(message, path),
            message.instance_id or None,
        )
    except (KeyError, ValueError) as error:
        raise MetadataFormatError(f"settings of a log {path} are damaged: {error}") from error
    return log_id_of(message.log_id, path), settings


def _schemas(message: pb.Settings, path: str) -> SchemaHistory | None:
    changes = message.schema_changes
    is_sound = (message.format_version == _WITHOUT_SCHEMA_CHANGES) == (not changes)
    if not is_sound or len(changes) >= MAX_SCHEMA_VERSIONS or (changes and not message.schema_json):
        raise MetadataFormatError(
            f"settings of a log {path} are damaged: format version {message.format_version} with {len(changes)} "
            "changes of the schema"
        )
    if max((change.time_ms for change in changes), default=0) > _MAX_INT64:
        raise MetadataFormatError(f"settings of a log {path} are damaged: a version of the schema has no possible time")
    if not message.schema_json:
        return None
    history = SchemaHistory(
        message.schema_json,
        tuple(
            SchemaChange(change.time_ms, tuple(zip(change.positions, change.columns, strict=True)))
            for change in changes
        ),
    )
    try:
        _ = history.current_json
    except MetadataFormatError as error:
        raise MetadataFormatError(f"settings of a log {path} are damaged: {error.message}") from error
    return history


@functools.lru_cache(maxsize=1024)
def _derive(password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", master_key(password), salt, iterations, _HASH_BYTES)
