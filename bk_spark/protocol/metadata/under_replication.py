"""The znodes below ``<root>/underreplication``: their paths and contents. Source: compatibility.md §6.1, §6.3.

===================================== ========== ===========================================================
path                                  kind       content
===================================== ========== ===========================================================
``LAYOUT``                            persistent text: ``type: "BASIC" LF version: 1 LF``
``ledgers/0000/0012/3456/789a/urL…``  persistent text: a *mark*, which names the bookies that lack copies
``locks/urL…``                        ephemeral  text: who repairs the ledger
``workers/<uuid>``                    ephemeral  JSON: a worker's session (ours, Apache ignores it)
``collectors/<uuid>``                 ephemeral  JSON: the session of a bookie's garbage collection (ours, likewise)
``auditorelection``                   persistent text: the auditor
``auditorelection/V_nnnnnnnnnn``      ephemeral  text: a vote (sequential). The smallest number wins
``disable``                           persistent empty. While it exists, nothing is replicated
``lostBookieRecoveryDelay``           persistent decimal seconds
``checkallledgersctime`` and others   persistent binary: when the auditor last did a check
===================================== ========== ===========================================================

The directories of a mark spell the ledger id in hexadecimal. Its own name, ``urL`` and at least ten digits, is decimal.
"Text" is protobuf's text format.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata.ledger_paths import MAX_LEDGER_ID
from bk_spark.protocol.metadata.proto import data_formats_pb2 as pb
from bk_spark.protocol.metadata.text_message import parse_text

LAYOUT: Final = b'type: "BASIC"\nversion: 1\n'
#: The largest delay, as in Apache's ``int``.
MAX_RECOVERY_DELAY_S: Final = 2**31 - 1
_MARK_PREFIX: Final = "urL"
_VOTE_PREFIX: Final = "V_"
_GROUP_DIGITS: Final = 4
#: The number of directory levels above a mark.
MARK_DEPTH: Final = 4
_HEX_DIGITS: Final = frozenset("0123456789abcdef")
_WORKER_VERSION: Final = 1
_MAX_DIGITS: Final = len(str(MAX_LEDGER_ID))
_M = TypeVar("_M", bound=Message)


class PeriodicCheck(enum.Enum):
    """A check whose last time the auditor stores. The value is the znode's name."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT_POLICY = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


_CHECK_MESSAGES: Final[Mapping[PeriodicCheck, tuple[Any, str]]] = {
    PeriodicCheck.ALL_LEDGERS: (pb.CheckAllLedgersFormat, "checkAllLedgersCTime"),
    PeriodicCheck.PLACEMENT_POLICY: (pb.PlacementPolicyCheckFormat, "placementPolicyCheckCTime"),
    PeriodicCheck.REPLICAS: (pb.ReplicasCheckFormat, "replicasCheckCTime"),
}


@dataclass(frozen=True, slots=True)
class UnderReplicationPaths:
    """The paths below the root of a cluster's znodes."""

    root: str

    @property
    def base(self) -> str:
        """The parent of all of them."""
        return f"{self.root}/underreplication"

    @property
    def layout(self) -> str:
        """The znode that names the format. Another format is refused."""
        return f"{self.base}/LAYOUT"

    @property
    def marks(self) -> str:
        """The root of the tree of marks."""
        return f"{self.base}/ledgers"

    @property
    def locks(self) -> str:
        """The parent of the locks of ledgers under repair."""
        return f"{self.base}/locks"

    @property
    def workers(self) -> str:
        """The parent of the sessions of replication workers."""
        return f"{self.base}/workers"

    @property
    def collectors(self) -> str:
        """The parent of the sessions of garbage collectors."""
        return f"{self.base}/collectors"

    @property
    def election(self) -> str:
        """The znode that names the auditor, and the parent of the votes."""
        return f"{self.base}/auditorelection"

    @property
    def vote_prefix(self) -> str:
        """Where to create a vote. ZooKeeper appends its number."""
        return f"{self.election}/{_VOTE_PREFIX}"

    @property
    def disable(self) -> str:
        """The switch that stops all replication while it exists."""
        return f"{self.base}/disable"

    @property
    def recovery_delay(self) -> str:
        """How long the auditor waits before it marks the ledgers of a lost bookie."""
        return f"{self.base}/lostBookieRecoveryDelay"

    def mark(self, ledger_id: int) -> str:
        """Return the path of a ledger's mark."""
        _require_id(ledger_id)
        digits = f"{ledger_id:016x}"
        groups = "/".join(digits[start : start + _GROUP_DIGITS] for start in range(0, 16, _GROUP_DIGITS))
        return f"{self.marks}/{groups}/{_leaf(ledger_id)}"

    def lock(self, ledger_id: int) -> str:
        """Return the path of a ledger's lock."""
        _require_id(ledger_id)
        return f"{self.locks}/{_leaf(ledger_id)}"

    def check_time(self, check: PeriodicCheck) -> str:
        """Return where the auditor notes when it last did this check."""
        return f"{self.base}/{check.value}"


def is_mark_group(name: str) -> bool:
    """Return whether the child ``name`` of a directory of marks is a directory of marks."""
    return len(name) == _GROUP_DIGITS and _HEX_DIGITS.issuperset(name)


def locked_ledger(name: str) -> int | None:
    """Return the ledger id in the name of a lock or a mark. None if it is not such a name."""
    digits = name.removeprefix(_MARK_PREFIX)
    if not _is_number(digits):
        return None
    ledger_id = int(digits)
    return ledger_id if ledger_id <= MAX_LEDGER_ID and name == _leaf(ledger_id) else None


def vote_number(name: str) -> int | None:
    """Return the number of the vote ``V_<number>``. None if it is not such a name."""
    digits = name.removeprefix(_VOTE_PREFIX)
    if digits == name or not _is_number(digits.removeprefix("-")):
        return None
    return int(digits)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def _leaf(ledger_id: int) -> str:
    return f"{_MARK_PREFIX}{ledger_id:010d}"


def _require_id(ledger_id: int) -> None:
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise InvalidArgumentError(f"ledger id {ledger_id} is not within 0..{MAX_LEDGER_ID}")


# --- contents -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A ledger that is marked as under-replicated.

    Parameters
    ----------
    missing
        The bookies that lack copies, in the order in which they were marked. May be empty, for example if only the
        placement of copies is wrong.
    ctime_ms
        When the ledger was marked, by the marker's clock. None if the content does not say.
    version
        The version of the znode.
    problem
        Why the content cannot be parsed. A ledger with such a mark is marked nevertheless.
    """

    missing: tuple[str, ...]
    ctime_ms: int | None = None
    version: int = 0
    problem: str | None = None

    def encode(self) -> bytes:
        """Return the content of the znode. ``version`` and ``problem`` are not part of it."""
        return _text(pb.UnderreplicatedLedgerFormat(replica=self.missing, ctime=self.ctime_ms))

    @classmethod
    def decode(cls, content: bytes, version: int, source: str) -> Mark:
        """Parse a mark. Raises MetadataFormatError, which names ``source`` (the znode)."""
        message = _parse(pb.UnderreplicatedLedgerFormat, content, source, "a mark of an under-replicated ledger")
        ctime_ms = message.ctime if message.HasField("ctime") else None
        return cls(tuple(message.replica), ctime_ms, version)

    def with_missing(self, missing: Collection[str], now_ms: int) -> Mark:
        """Return the mark with these bookies, too. The time changes only if one of them is new."""
        new = [bookie_id for bookie_id in missing if bookie_id not in self.missing]
        return Mark((*self.missing, *new), now_ms, self.version) if new else self


def check_layout(content: bytes, source: str) -> None:
    """Raise MetadataFormatError, which names ``source``, if the layout is not the one that this release knows."""
    message = _parse(pb.LedgerRereplicationLayoutFormat, content, source, "a layout of under-replication")
    if (message.type, message.version) != ("BASIC", 1):
        raise MetadataFormatError(
            f"{source} names the layout {message.type[:40]!r} version {message.version}; this release knows 'BASIC' "
            "version 1. Use a release that knows it"
        )


def encode_lock(holder: str) -> bytes:
    """Return the content of a lock. ``holder`` only informs people. Apache writes a host name."""
    return _text(pb.LockDataFormat(bookieId=holder))


def decode_lock(content: bytes, source: str) -> str | None:
    """Return who holds a lock, if the content says so. Raises MetadataFormatError."""
    message = _parse(pb.LockDataFormat, content, source, "a lock of a ledger")
    return message.bookieId if message.HasField("bookieId") else None


def encode_vote(bookie_id: str) -> bytes:
    """Return the content of a vote, or of the znode of the elected auditor."""
    return _text(pb.AuditorVoteFormat(bookieId=bookie_id))


def decode_vote(content: bytes, source: str) -> str | None:
    """Return the bookie id in a vote, if it has one. Raises MetadataFormatError."""
    message = _parse(pb.AuditorVoteFormat, content, source, "a vote for the auditor")
    return message.bookieId if message.HasField("bookieId") else None


def encode_recovery_delay(delay_s: int) -> bytes:
    """Return the content of ``lostBookieRecoveryDelay``. Raises InvalidArgumentError."""
    if not 0 <= delay_s <= MAX_RECOVERY_DELAY_S:
        raise InvalidArgumentError(f"lostBookieRecoveryDelay {delay_s} is not within 0..{MAX_RECOVERY_DELAY_S} seconds")
    return str(delay_s).encode()


def decode_recovery_delay(content: bytes, source: str) -> int:
    """Parse the delay in seconds. Raises MetadataFormatError."""
    text = content.decode("ascii", "replace")
    if not (_is_number(text) and int(text) <= MAX_RECOVERY_DELAY_S):
        raise MetadataFormatError(
            f"{source} is not a number of seconds within 0..{MAX_RECOVERY_DELAY_S}: {text[:40]!r}"
        )
    return int(text)


def encode_check_time(check: PeriodicCheck, time_ms: int) -> bytes:
    """Return the content that stores when a check was last done (Unix time)."""
    message, field = _CHECK_MESSAGES[check]
    return bytes(message(**{field: time_ms}).SerializeToString())


def decode_check_time(check: PeriodicCheck, content: bytes, source: str) -> int | None:
    """Return when a check was last done (Unix time, ms), if the content says so. Raises MetadataFormatError."""
    kind, field = _CHECK_MESSAGES[check]
    try:
        message = kind.FromString(content)
    except DecodeError as error:
        raise MetadataFormatError(f"{source} does not hold the time of a check: {error}") from error
    return int(getattr(message, field)) if message.HasField(field) else None


def encode_worker(name: str) -> bytes:
    """Return the content of a worker's znode, for people who look at it."""
    return json.dumps({"version": _WORKER_VERSION, "name": name}).encode()


def _text(message: Message) -> bytes:
    return text_format.MessageToString(message, as_utf8=True).encode()


def _parse(kind: type[_M], content: bytes, source: str, what: str) -> _M:
    message = parse_text(kind, content, source, what)
    if not message.IsInitialized():
        raise MetadataFormatError(f"{source} is not {what}: a required field is missing")
    return message
