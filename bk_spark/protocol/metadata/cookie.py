"""Cookies, which name the bookie that owns a directory. Source: compatibility.md §3.5.

A cookie is UTF-8 text: the layout version on the first line, then (versions 4 and 5) ``CookieFormat`` in protobuf's
text format. ZooKeeper (``cookies/<bookie id>``) and the file ``VERSION`` of each directory hold the same text. Version
3 has plain lines: 3, bookie id, journal directory, ledger directories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf import text_format

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata.proto import data_formats_pb2 as pb
from bk_spark.protocol.metadata.text_message import parse_text

LAYOUT_VERSION: Final = 5
_PLAIN_VERSION: Final = 3
_KNOWN_VERSIONS: Final = (3, 4, 5)
_MAX_COOKIE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cookie:
    """A cookie. ``journal_directories`` are joined with commas. :func:`encode_directories` encodes
    ``ledger_directories`` and ``index_directories``. Without index directories, the ledger directories are used."""

    bookie_id: str
    journal_directories: str
    ledger_directories: str
    instance_id: str | None = None
    index_directories: str | None = None

    def encode(self) -> bytes:
        """Return the cookie as text of version 5, for the znode and for ``VERSION`` files."""
        message = pb.CookieFormat(
            bookieHost=self.bookie_id, journalDir=self.journal_directories, ledgerDirs=self.ledger_directories
        )
        if self.instance_id is not None:
            message.instanceId = self.instance_id
        if self.index_directories is not None:
            message.indexDirs = self.index_directories
        return f"{LAYOUT_VERSION}\n{text_format.MessageToString(message, as_utf8=True)}".encode()

    @classmethod
    def decode(cls, content: bytes, source: str) -> Cookie:
        """Parse a cookie. Raises MetadataFormatError, which names ``source`` (the file or znode)."""
        try:
            if len(content) > _MAX_COOKIE_BYTES:
                raise ValueError(f"{len(content)} bytes are too many")
            first, _, rest = content.decode("utf-8").partition("\n")
            if not (first.isascii() and first.isdecimal()):
                raise ValueError("its first line is not a number")
            version = int(first)
        except ValueError as error:
            raise MetadataFormatError(f"{source} is not a cookie: {error}") from error
        if version not in _KNOWN_VERSIONS:
            raise MetadataFormatError(f"{source} is a cookie of version {version}; known are 3, 4 and 5")
        if version == _PLAIN_VERSION:
            lines = rest.split("\n")
            if len(lines) < 3:
                raise MetadataFormatError(f"{source} is a cookie of version 3 with {len(lines) + 1} lines, 4 expected")
            return cls(lines[0], lines[1], lines[2])
        message = parse_text(pb.CookieFormat, rest.encode(), source, "a cookie")
        if not message.IsInitialized():
            raise MetadataFormatError(f"{source} is a cookie without bookieHost, journalDir or ledgerDirs")
        return cls(
            message.bookieHost,
            message.journalDir,
            message.ledgerDirs,
            message.instanceId if message.HasField("instanceId") else None,
            message.indexDirs if message.HasField("indexDirs") else None,
        )

    def differences(self, other: Cookie, *, expanding: bool = False) -> list[str]:
        """Return the fields that differ, as ``field: mine / the other's``. A missing instance id equals any.

        With ``expanding`` this cookie may name more ledger and index directories than the other.
        """
        pairs = [
            ("bookieHost", self.bookie_id, other.bookie_id),
            ("journalDir", self.journal_directories, other.journal_directories),
        ]
        for name, mine, theirs in (
            ("ledgerDirs", self.ledger_directories, other.ledger_directories),
            ("indexDirs", self._index_directories, other._index_directories),
        ):
            if not (expanding and set(decode_directories(mine)) >= set(decode_directories(theirs))):
                pairs.append((name, mine, theirs))
        if self.instance_id is not None and other.instance_id is not None:
            pairs.append(("instanceId", self.instance_id, other.instance_id))
        return [f"{name}: {mine!r} / {theirs!r}" for name, mine, theirs in pairs if mine != theirs]

    def storage_directories(self) -> set[str]:
        """Return the ledger and index directories."""
        return {*decode_directories(self.ledger_directories), *decode_directories(self._index_directories)}

    @property
    def _index_directories(self) -> str:
        return self.index_directories or self.ledger_directories


def encode_directories(directories: Sequence[str]) -> str:
    """Return the number of directories and their names, separated by tabs."""
    return "\t".join([str(len(directories)), *directories])


def decode_directories(text: str) -> list[str]:
    """Return the names in the text from :func:`encode_directories`."""
    return text.split("\t")[1:]
