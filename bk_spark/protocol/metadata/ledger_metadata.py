"""Ledger metadata: the value type, its transitions, and its forms in ZooKeeper.

Every form begins with ``BookieMetadataFormatVersion TAB <version> LF``. Version 2 continues with LedgerMetadataFormat
as protobuf text, version 3 with a varint size and the binary message. We read 2 and 3 and write version 3, but an
update keeps the version that it found. The error for version 1 (BookKeeper before 4.2) names it. Source:
compatibility.md §3.6, §3.7.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError, EncodeError

from bk_spark.protocol.codes import NO_ENTRY, DigestType
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata.proto.data_formats_pb2 import LedgerMetadataFormat
from bk_spark.protocol.quorum import Quorum

_PREFIX: Final = b"BookieMetadataFormatVersion\t"
_HEADER: Final = re.compile(rb"BookieMetadataFormatVersion\t(\d{1,10})\n")
_TEXT_VERSION: Final = 2
_BINARY_VERSION: Final = 3


class LedgerState(enum.Enum):
    """The state of a ledger. The value is its number in ledger metadata."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """The bookies ``ensemble`` (ids) of the entries from ``first_entry_id`` up to the next segment's first."""

    first_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """A ledger's metadata in ZooKeeper. Immutable: a change makes a new object.

    Parameters
    ----------
    quorum
        Ensemble size, write quorum and ack quorum.
    segments
        The ledger's fragments: the first entry and the bookies of each.
    state
        Open, in recovery, or closed.
    last_entry_id
        The last entry of a closed ledger. -1 if the ledger is empty or not closed.
    length
        The payload bytes of a closed ledger. 0 if it is not closed.
    digest_type
        The checksum of each entry. None, as ``password``, for ledgers from before BookKeeper 4.2.
    password
        The password of the ledger. It is not shown by ``repr``.
    creation_time_ms
        When the ledger was created, in Unix milliseconds. None if not stored.
    custom_metadata
        Names and values that the creator chose.
    creator_token
        A random number by which the creator recognises a ledger that it created.
    format_version
        The version of the stored form, 2 or 3.

    Raises
    ------
    InvalidArgumentError
        If the fragments do not fit each other or the quorum.
    """

    quorum: Quorum
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes | None = field(default=b"", repr=False)
    creation_time_ms: int | None = None
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    creator_token: int | None = None
    format_version: int = _BINARY_VERSION

    def __post_init__(self) -> None:
        if not self.segments or self.segments[0].first_entry_id != 0:
            raise InvalidArgumentError("ledger metadata needs a segment that begins at entry 0")
        previous = -1
        for segment in self.segments:
            if segment.first_entry_id <= previous:
                raise InvalidArgumentError("segments of a ledger must have increasing first entries")
            if len(segment.ensemble) != self.quorum.ensemble_size:
                raise InvalidArgumentError(
                    f"segment at entry {segment.first_entry_id} has {len(segment.ensemble)} bookies, "
                    f"ensembleSize is {self.quorum.ensemble_size}"
                )
            previous = segment.first_entry_id

    @property
    def last_segment(self) -> Segment:
        """The last fragment."""
        return self.segments[-1]

    def segment_of(self, entry_id: int) -> Segment:
        """Find the fragment that holds an entry.

        Parameters
        ----------
        entry_id
            The entry, from 0 on.

        Returns
        -------
        Segment
            The fragment: its first entry and its bookies.

        Raises
        ------
        InvalidArgumentError
            If ``entry_id`` is negative.
        """
        for segment in reversed(self.segments):
            if segment.first_entry_id <= entry_id:
                return segment
        raise InvalidArgumentError(f"entry id {entry_id} is negative")

    def in_recovery(self) -> LedgerMetadata:
        """Return the same ledger, in recovery."""
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Return the same ledger, closed at ``last_entry_id`` with ``length`` bytes of payload."""
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def with_segment(self, segment: Segment) -> LedgerMetadata:
        """Append ``segment``, or replace the last one if it begins at the same entry."""
        kept = self.segments
        if kept[-1].first_entry_id == segment.first_entry_id:
            kept = kept[:-1]
        return replace(self, segments=(*kept, segment))


def encode(metadata: LedgerMetadata) -> bytes:
    """Return the content of the ledger's znode, in the format version of ``metadata``."""
    message = LedgerMetadataFormat(
        quorumSize=metadata.quorum.write_quorum_size,
        ensembleSize=metadata.quorum.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=metadata.state.name,
        ackQuorumSize=metadata.quorum.ack_quorum_size,
    )
    if metadata.state is not LedgerState.CLOSED:
        message.length = 0
        message.lastEntryId = NO_ENTRY
    for segment in metadata.segments:
        message.segment.add(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id)
    if metadata.digest_type is not None:
        message.MergeFrom(LedgerMetadataFormat(digestType=metadata.digest_type.name, password=metadata.password or b""))
    if metadata.creation_time_ms is not None:
        message.ctime = metadata.creation_time_ms
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    header = _PREFIX + str(metadata.format_version).encode() + b"\n"
    if metadata.format_version == _TEXT_VERSION:
        return header + text_format.MessageToString(message).encode()
    if metadata.format_version != _BINARY_VERSION:
        raise MetadataFormatError(f"ledger metadata of format version {metadata.format_version} cannot be written")
    # Apache's writer drops the creator's token on every update and leaves 0 in its place (compatibility.md §3.7).
    message.cToken = metadata.creator_token or 0
    try:
        body = message.SerializeToString()
    except EncodeError as error:  # pragma: no cover - all required fields are set above
        raise MetadataFormatError("ledger metadata cannot be encoded") from error
    return header + _varint(len(body)) + body


def decode(data: bytes) -> LedgerMetadata:
    """Parse a ledger's znode. Raises MetadataFormatError."""
    match = _HEADER.match(data)
    if match is None:
        raise MetadataFormatError("ledger metadata does not begin with BookieMetadataFormatVersion")
    version, body = int(match[1]), data[match.end() :]
    message = LedgerMetadataFormat()
    try:
        if version == _TEXT_VERSION:
            text_format.Parse(body.decode("utf-8"), message)
        elif version == _BINARY_VERSION:
            size, start = _read_varint(body)
            if len(body) - start < size:
                raise MetadataFormatError("ledger metadata is cut short")
            message.ParseFromString(body[start : start + size])
        else:
            raise MetadataFormatError(
                f"ledger metadata has format version {version}; this release reads versions 2 and 3"
            )
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise MetadataFormatError(f"ledger metadata of version {version} cannot be parsed") from error
    # Python's protobuf accepts missing required fields. A missing state would read as OPEN.
    if not message.IsInitialized():
        raise MetadataFormatError(f"ledger metadata of version {version} lack required fields")
    try:
        return _from_message(message, version)
    except InvalidArgumentError as error:
        raise MetadataFormatError(f"ledger metadata is not consistent: {error.message}") from error


def _from_message(message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
    state = LedgerState(message.state)
    if state is LedgerState.CLOSED and not message.HasField("lastEntryId"):
        raise MetadataFormatError("closed ledger without lastEntryId")
    ack_quorum = message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
    has_password = message.HasField("digestType") and message.HasField("password")
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        quorum=Quorum(message.ensembleSize, message.quorumSize, ack_quorum),
        segments=tuple(Segment(part.firstEntryId, tuple(part.ensembleMember)) for part in message.segment),
        state=state,
        last_entry_id=message.lastEntryId if closed else NO_ENTRY,
        length=message.length if closed else 0,
        digest_type=DigestType(message.digestType) if has_password else None,
        password=message.password if has_password else None,
        creation_time_ms=message.ctime if message.HasField("ctime") else None,
        custom_metadata={pair.key: pair.value for pair in message.customMetadata},
        creator_token=message.cToken or None,
        format_version=version,
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, index + 1
    raise MetadataFormatError("ledger metadata has no message size")
