"""Content of a log's small znodes, such as head, application and registration.

Messages are in ``proto/log_formats.proto``. Each starts with a format version; an unknown version raises
MetadataFormatError. Limits are checked before anything is built from the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Final, TypeVar
from uuid import UUID

from google.protobuf.message import DecodeError, Message

from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.protocol.errors import MetadataFormatError

HEAD_VERSION: Final = 2
APPLICATION_VERSION: Final = 1
REGISTRATION_VERSION: Final = 1
OWNER_VERSION: Final = 1
APPENDED_VERSION: Final = 1
POLICY_VERSION: Final = 2
MAINTENANCE_VERSION: Final = 1

MAX_HEAD_BYTES: Final = 4 * 1024
MAX_APPLICATION_BYTES: Final = 512 * 1024
MAX_REGISTRATION_BYTES: Final = 1024
_MAX_SMALL_BYTES: Final = 4 * 1024
#: Retired runs that an application remembers.
MAX_RETIRED_RUNS: Final = 32

_MAX_INT64: Final = (1 << 63) - 1
_Message = TypeVar("_Message", bound=Any)


@dataclass(frozen=True, slots=True)
class IndexPosition:
    """Where to find the pages below ``end_page`` (segments below ``end_offset``): one entry of the index ledger leads
    to them."""

    ledger_id: int
    entry_id: int
    end_page: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a log. Its committed offsets are ``[first_offset, next_offset)``.

    Their segments are in pages ``first_page`` to ``tail_page``. With an ``index``, also in the pages that it leads to.
    ``deleted_time_ms`` is 0 unless the log's deletion has begun. ``kept_offset`` is where the list begins: up to
    ``first_offset`` it holds what was overwritten or truncated and is kept for reads of earlier states. None: the log
    keeps none, and its pages do not record commits, as in the first release. ``last_change_time_ms`` is the time of the
    last recorded change if that is later than the last commit.
    """

    log_id: str
    first_offset: int = 0
    next_offset: int = 0
    first_page: int = 0
    tail_page: int = 0
    last_commit_time_ms: int = 0
    index: IndexPosition | None = None
    deleted_time_ms: int = 0
    kept_offset: int | None = None
    last_change_time_ms: int = 0

    @property
    def list_offset(self) -> int:
        """The first offset in the list: ``kept_offset``, or else ``first_offset``."""
        return self.first_offset if self.kept_offset is None else self.kept_offset

    def change_time_ms(self, now_ms: int) -> int:
        """Return the time of a change now. No change is earlier than one before it."""
        return max(now_ms, self.last_commit_time_ms, self.last_change_time_ms)

    @property
    def first_znode_page(self) -> int:
        """The first page that is a znode. Earlier pages have left the list, or ZooKeeper for the index."""
        return self.first_page if self.index is None else max(self.first_page, self.index.end_page)


@dataclass(frozen=True, slots=True)
class Application:
    """What an application committed last, and who may commit next.

    ``in_use`` gives the last committed entry of each ledger of the current ``run``, ordered by last commit, oldest
    first. For ledgers that have left it, the registration holds that entry.
    """

    app: str
    query_id: str
    batch_id: int
    run: str
    commit_time_ms: int
    start_offset: int
    end_offset: int
    retired_runs: tuple[str, ...] = ()
    in_use: MappingProxyType[int, int] = field(default_factory=lambda: MappingProxyType({}))
    anonymous: bool = False
    #: Rows of the last batch.
    rows: int = 0
    #: The streaming query's own number of the last batch. None if it was not committed by a query.
    query_batch_id: int | None = None

    def successor_of(self, run: str) -> str | None:
        """Return the run that took over from ``run``, or None if ``run`` is not known to be retired."""
        line = (*self.retired_runs, self.run)
        return next((later for earlier, later in pairwise(line) if earlier == run), None)


@dataclass(frozen=True, slots=True)
class LedgerRegistration:
    """A ledger made for the log. Once it is ``condemned``, its znode is only deleted: so the mtime says since when."""

    last_committed_entry: int | None = None
    condemned: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The log writer that holds the tail open. ``host`` and ``process_id`` are for display."""

    writer_id: str
    host: str
    process_id: int
    opened_time_ms: int


@dataclass(frozen=True, slots=True)
class Appended:
    """A ledger that was not made for the log. Its first entry is at ``offset``."""

    token: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class Policy:
    """What maintenance keeps of a log. Rows within either limit are never dropped.

    Parameters
    ----------
    retention_time_ms
        Keep segments younger than this, in milliseconds. 0: no limit.
    retention_size_bytes
        Keep the newest segments, at least this many bytes. 0: no limit.
    orphan_retention_ms
        Delete an unreferenced ledger that is older than this, even if its run may still be active. Milliseconds.
    delete_grace_ms
        How long a condemned ledger is kept for its readers before it is deleted. Milliseconds.
    history_ms
        How long each state of the log stays readable after it was overwritten, truncated or cut by retention.
        Milliseconds. 0: such rows may be deleted at once.
    """

    retention_time_ms: int = 0
    retention_size_bytes: int = 0
    orphan_retention_ms: int = 7 * 24 * 3_600_000
    delete_grace_ms: int = 3_600_000
    history_ms: int = 0


def encode_head(head: Head) -> bytes:
    """Encode the head. Format version 2 if the log records commits, otherwise 1, which release 0.1.0 reads."""
    message = pb.Head(
        format_version=1 if head.kept_offset is None else HEAD_VERSION,
        log_id=UUID(head.log_id).bytes,
        first_offset=head.first_offset,
        next_offset=head.next_offset,
        first_page=head.first_page,
        tail_page=head.tail_page,
        last_commit_time_ms=head.last_commit_time_ms,
        deleted_time_ms=head.deleted_time_ms,
        kept_offset=head.kept_offset,
        last_change_time_ms=head.last_change_time_ms,
    )
    if head.index is not None:
        message.index.ledger_id = head.index.ledger_id
        message.index.entry_id = head.index.entry_id
        message.index.end_page = head.index.end_page
        message.index.end_offset = head.index.end_offset
    return message.SerializeToString()


def decode_head(data: bytes, path: str) -> Head:
    """Decode the head in znode ``path``. Raises MetadataFormatError if it is damaged or its version is unknown."""
    message = parse(pb.Head(), data, path, "head of a log", HEAD_VERSION, MAX_HEAD_BYTES)
    index = None
    if message.HasField("index"):
        position = message.index
        index = IndexPosition(position.ledger_id, position.entry_id, position.end_page, position.end_offset)
    head = Head(
        log_id_of(message.log_id, path),
        message.first_offset,
        message.next_offset,
        message.first_page,
        message.tail_page,
        message.last_commit_time_ms,
        index,
        message.deleted_time_ms,
        message.kept_offset if message.HasField("kept_offset") else None,
        message.last_change_time_ms,
    )
    is_recorded = message.format_version > 1
    if (
        not head.list_offset <= head.first_offset <= head.next_offset <= _MAX_INT64
        or not head.first_page <= head.tail_page < _MAX_INT64
        or is_recorded != (head.kept_offset is not None)
    ):
        raise MetadataFormatError(f"head of a log {path} is damaged: {head}")
    return head


def encode_application(application: Application) -> bytes:
    """Encode what an application committed last. The caller keeps it within MAX_APPLICATION_BYTES."""
    return pb.Application(
        format_version=APPLICATION_VERSION,
        app=application.app,
        query_id=application.query_id,
        batch_id=application.batch_id,
        run=application.run,
        retired_runs=application.retired_runs,
        in_use_ledger_deltas=_deltas(application.in_use),
        in_use_last_entries=application.in_use.values(),
        commit_time_ms=application.commit_time_ms,
        start_offset=application.start_offset,
        end_offset=application.end_offset,
        anonymous=application.anonymous,
        rows=application.rows,
        query_batch_id=application.query_batch_id,
    ).SerializeToString()


def decode_application(data: bytes, path: str) -> Application:
    """Decode the application in znode ``path``. Raises MetadataFormatError."""
    message = parse(pb.Application(), data, path, "application of a log", APPLICATION_VERSION, MAX_APPLICATION_BYTES)
    ledgers = list(accumulate(message.in_use_ledger_deltas))
    in_use = dict(zip(ledgers, message.in_use_last_entries, strict=False))
    if (
        not len(in_use) == len(ledgers) == len(message.in_use_last_entries)
        or len(message.retired_runs) > MAX_RETIRED_RUNS
        or not 0 <= min(ledgers, default=0) <= max(ledgers, default=0) <= _MAX_INT64
    ):
        raise MetadataFormatError(f"application of a log {path} is damaged")
    return Application(
        app=message.app,
        query_id=message.query_id,
        batch_id=message.batch_id,
        run=message.run,
        commit_time_ms=message.commit_time_ms,
        start_offset=message.start_offset,
        end_offset=message.end_offset,
        retired_runs=tuple(message.retired_runs),
        in_use=MappingProxyType(in_use),
        anonymous=message.anonymous,
        rows=message.rows,
        query_batch_id=message.query_batch_id if message.HasField("query_batch_id") else None,
    )


def encode_registration(registration: LedgerRegistration) -> bytes:
    """Encode a ledger's registration."""
    return pb.Registration(
        format_version=REGISTRATION_VERSION,
        last_committed_entry=registration.last_committed_entry,
        condemned=registration.condemned,
    ).SerializeToString()


def decode_registration(data: bytes, path: str) -> LedgerRegistration:
    """Decode the registration in znode ``path``. Raises MetadataFormatError."""
    message = parse(
        pb.Registration(), data, path, "registration of a ledger", REGISTRATION_VERSION, MAX_REGISTRATION_BYTES
    )
    last_committed = message.last_committed_entry if message.HasField("last_committed_entry") else None
    return LedgerRegistration(last_committed, message.condemned)


def encode_owner(owner: Owner) -> bytes:
    """Encode who holds the tail open."""
    return pb.Owner(
        format_version=OWNER_VERSION,
        writer_id=owner.writer_id,
        host=owner.host,
        process_id=owner.process_id,
        opened_time_ms=owner.opened_time_ms,
    ).SerializeToString()


def decode_owner(data: bytes, path: str) -> Owner:
    """Decode the owner in znode ``path``. Raises MetadataFormatError."""
    message = parse(pb.Owner(), data, path, "owner of a log's tail", OWNER_VERSION, _MAX_SMALL_BYTES)
    return Owner(message.writer_id, message.host, message.process_id, message.opened_time_ms)


def encode_appended(appended: Appended) -> bytes:
    """Encode where an appended ledger begins."""
    return pb.Appended(
        format_version=APPENDED_VERSION, token=appended.token, offset=appended.offset
    ).SerializeToString()


def decode_appended(data: bytes, path: str) -> Appended:
    """Decode the registration of an appended ledger in znode ``path``. Raises MetadataFormatError."""
    message = parse(pb.Appended(), data, path, "registration of an appended ledger", APPENDED_VERSION, _MAX_SMALL_BYTES)
    return Appended(message.token, message.offset)


def encode_policy(policy: Policy) -> bytes:
    """Encode a policy. Format version 2 if it keeps earlier states (``history_ms``), otherwise 1."""
    return pb.Policy(
        # Release 0.1.0 would drop history_ms, which it does not know, when it rewrites the policy.
        format_version=POLICY_VERSION if policy.history_ms else 1,
        retention_time_ms=policy.retention_time_ms,
        retention_size_bytes=policy.retention_size_bytes,
        orphan_retention_ms=policy.orphan_retention_ms,
        delete_grace_ms=policy.delete_grace_ms,
        history_ms=policy.history_ms,
    ).SerializeToString()


def decode_policy(data: bytes, path: str) -> Policy:
    """Decode the policy in znode ``path``. Raises MetadataFormatError."""
    message = parse(pb.Policy(), data, path, "policy of a log", POLICY_VERSION, _MAX_SMALL_BYTES)
    return Policy(
        message.retention_time_ms,
        message.retention_size_bytes,
        message.orphan_retention_ms,
        message.delete_grace_ms,
        message.history_ms,
    )


def encode_maintenance(token: bytes) -> bytes:
    """Encode the znode that records the beginning of maintenance. ``token`` is new for each beginning."""
    return pb.Maintenance(format_version=MAINTENANCE_VERSION, token=token).SerializeToString()


def decode_maintenance(data: bytes, path: str) -> bytes:
    """Return the token of the process that last began maintenance."""
    message = parse(pb.Maintenance(), data, path, "maintenance of a log", MAINTENANCE_VERSION, _MAX_SMALL_BYTES)
    token: bytes = message.token
    return token


def parse(message: _Message, data: bytes, path: str, what: str, version: int, max_bytes: int) -> _Message:
    """Fill ``message`` from ``data``, which may have the format versions 1 to ``version``, and return it.

    Raises MetadataFormatError, which names ``what`` and ``path``.
    """
    if len(data) > max_bytes:
        raise MetadataFormatError(f"{what} {path} has {len(data)} bytes, more than {max_bytes}")
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MetadataFormatError(f"{path} does not hold the {what}: {error}") from error
    if not 1 <= message.format_version <= version:
        known = "1" if version == 1 else f"1 to {version}"
        raise MetadataFormatError(
            f"{what} {path} has format version {message.format_version}; this release knows {known}: "
            "use the release that wrote it, or a later one"
        )
    _check_numbers(message, f"{what} {path}")
    return message


def _check_numbers(message: Any, where: str) -> None:
    """Raise MetadataFormatError for a number above 2^63-1. Elsewhere, offsets, ids, sizes and times are int64.

    Repeated fields are not checked here, but by those who decode them.
    """
    for described, value in message.ListFields():
        if isinstance(value, Message):
            _check_numbers(value, where)
        elif isinstance(value, int) and value > _MAX_INT64:
            raise MetadataFormatError(f"{where} is damaged: {described.name} is {value}")


def log_id_of(data: bytes, path: str) -> str:
    """Return the 16 bytes of a log id as text. Raises MetadataFormatError, naming ``path``, for another length."""
    if len(data) != 16:
        raise MetadataFormatError(f"{path} holds a log id of {len(data)} bytes, not 16")
    return str(UUID(bytes=data))


def _deltas(values: Iterable[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise((0, *values))]
