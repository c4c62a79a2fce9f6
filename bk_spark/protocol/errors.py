"""The one tree of errors that every layer raises.

There are four families, by who has to act: the caller (a wrong argument, a wrong password, a closed handle), a peer (a
bookie that is down, slow or sends nonsense), storage (a bookie's own disks) and metadata (ZooKeeper).

No message contains a password, a master key or a digest key.
"""

from __future__ import annotations

from typing import ClassVar, Final


class BookKeeperError(Exception):
    """The base class of all errors of this project.

    ``retriable`` says whether the same call may succeed later without any change.

    Parameters
    ----------
    message
        What was wrong, and what to do.
    ledger_id, entry_id, bookie_id
        Where the error happened, as far as known.
    code
        The name of the result code that a bookie sent, if it sent one.
    """

    retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie_id: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.bookie_id = bookie_id
        self.code = code

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (
                ("ledger", self.ledger_id),
                ("entry", self.entry_id),
                ("bookie", self.bookie_id),
                ("code", self.code),
            )
            if value is not None
        ]
        return f"{self.message} ({', '.join(where)})" if where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark workers to the driver); keyword arguments would be lost.
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))


def _rebuild(cls: type[BookKeeperError], message: str, state: dict[str, object]) -> BookKeeperError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


# --- the caller ---------------------------------------------------------------------------------


class CallerError(BookKeeperError):
    """The call cannot succeed as it was made."""


class InvalidArgumentError(CallerError, ValueError):
    """An argument, an option or a setting is wrong. The message names it and the remedy."""


class UnauthorizedError(CallerError):
    """The password of the ledger or log is wrong."""


class NoSuchLedgerError(CallerError):
    """The ledger does not exist."""


class NoSuchEntryError(CallerError):
    """The entry does not exist: it is beyond the end of the ledger, or was never written."""


class LedgerClosedError(CallerError):
    """The handle or the ledger is closed. No entry can be added."""


class LedgerExistsError(CallerError):
    """A ledger with the chosen id exists. Apache's client uses the code -20."""


class DuplicateEntryError(CallerError):
    """An entry with this id was added before. Apache's client uses the code -22."""


class EntryGapError(CallerError):
    """Entries wait for lower ids that were not added in time. The message names these ids."""

    retriable = True


class LedgerFencedError(CallerError):
    """Another client recovered the ledger. This writer has lost it."""


class NoSuchLogError(CallerError):
    """The log does not exist."""


class NoSuchTopicError(CallerError):
    """The topic of Pulsar does not exist, or no cluster of Pulsar keeps its metadata there."""


class LogExistsError(CallerError):
    """A log with this name exists."""


class LogReplacedError(CallerError):
    """The log was deleted, and another log has its name now."""


class LogRangeGoneError(CallerError):
    """The offsets are not in the log. They were truncated or overwritten, or are not written yet."""


class LogTailOpenError(CallerError):
    """A log writer holds the log's tail. Commits and other writers must wait until it is sealed."""


class LogFencedError(CallerError):
    """A log writer has lost the tail: another writer acquired it, or a commit sealed it.

    Entries below ``acknowledged_offset`` are in the log. It is None if unknown.
    """

    acknowledged_offset: int | None = None


class RunRetiredError(CallerError):
    """Another run of the same application has replaced this one. This run must not commit."""


class BatchRefusedError(CallerError):
    """Another query committed this batch, or a later one, under the same application name."""


class LedgerRefusedError(CallerError):
    """A ledger, or entries of it, cannot become part of the log."""


class MessageFormatError(CallerError):
    """An entry of a Pulsar topic is not what Pulsar writes: a corrupt batch, an unknown compression, a wrong size."""


class MessageEncryptedError(CallerError):
    """A message of a Pulsar topic is encrypted, and the reader was not told what to do with such messages."""


# --- a peer -------------------------------------------------------------------------------------


class PeerError(BookKeeperError):
    """A bookie failed a request."""

    retriable = True


class WireFormatError(PeerError):
    """The bookie sent bytes that are not a valid frame."""

    retriable = False


class BookieUnavailableError(PeerError):
    """There is no connection to the bookie, or it broke while requests were unanswered."""


class TlsError(BookieUnavailableError):
    """There is no connection to the bookie, because TLS cannot be agreed on. The message says why: a certificate, a
    version, or a side without TLS. The client never falls back to a connection in clear. Apache's client uses the code
    -24."""


class LoginError(BookieUnavailableError):
    """There is no connection to the bookie, because it refuses the login, or does not prove who it is. The message says
    what is known about the reason. Apache's client uses the code -102."""


class BookieTimeoutError(PeerError):
    """The bookie did not answer in time."""


class BookieAnswerError(PeerError):
    """The bookie answered with an error code."""


class RequestRefusedError(PeerError):
    """The bookie does not support the request. It runs another release, or lacks the operation."""

    retriable = False


class DigestMismatchError(PeerError):
    """The digest, the ledger id or the entry id of an entry is wrong."""


class NotEnoughBookiesError(PeerError):
    """Fewer bookies are usable than the ensemble needs."""


class EntryUnknownError(PeerError):
    """No replica could tell whether the entry exists."""


#: The remedy in messages about bookies that hold the wanted data but do not answer.
AWAY_REMEDY: Final = (
    "check that these bookies are running and reachable from here (bkctl doctor tries each of them), then try again: "
    "they still hold the entries"
)


class AddQuorumTimeoutError(PeerError):
    """An entry did not reach its ack quorum in time. The writer has ended. Apache's client uses the code -21."""

    retriable = False


class EnsembleChangeRefusedError(PeerError):
    """A bookie of the ensemble failed, and this writer must not replace it. The writer has ended."""

    retriable = False


# --- storage ------------------------------------------------------------------------------------


class StorageError(BookKeeperError):
    """A bookie's own files or disks failed."""


class CorruptFileError(StorageError):
    """A file of the bookie has the wrong format. The message names the file and the position."""


class CookieMismatchError(StorageError):
    """A directory belongs to another bookie or to another cluster."""


# --- metadata -----------------------------------------------------------------------------------


class MetadataError(BookKeeperError):
    """ZooKeeper failed, or what it stores is wrong."""


class MetadataUnavailableError(MetadataError):
    """ZooKeeper cannot be reached, or did not answer in time."""

    retriable = True


class OutcomeUnknownError(MetadataUnavailableError):
    """The connection was lost during a change. It may or may not have taken effect.

    The caller must ``sync``, read, and decide. It must never blindly send the change again.
    """

    retriable = False


class MetadataConflictError(MetadataError):
    """Another client changed the znode first."""

    retriable = True


class SessionLostError(MetadataError):
    """The session that held a lock or a vote has ended. The change was refused as a whole."""


class ClockDifferenceError(MetadataError):
    """The clocks of this machine and of ZooKeeper differ. The message says by how much."""


class NodeExistsError(MetadataConflictError):
    """The znode to create exists."""

    retriable = False


class NoNodeError(MetadataConflictError):
    """The znode to change does not exist."""

    retriable = False


class MetadataFormatError(MetadataError):
    """A znode has the wrong format, or a format version that this release does not know."""
