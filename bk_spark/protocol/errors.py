"""The one tree of errors that every layer raises.

Four families, by who has to act: the caller (bad argument, wrong password, closed handle), a peer
(a bookie that is away, slow or answers nonsense), storage (a bookie's own disks) and metadata
(ZooKeeper). ``retriable`` says whether the same call may succeed later without any change.

No error text may carry a password, master key or digest key.
"""

from __future__ import annotations

from typing import ClassVar, Final


class BookKeeperError(Exception):
    """Root of all errors of this project.

    ``ledger_id``, ``entry_id``, ``bookie_id`` and ``code`` (name of the wire code) say where it
    happened, as far as known.
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
    """An argument, option or configuration value is wrong; the text names it and the remedy."""


class UnauthorizedError(CallerError):
    """The password does not open this ledger or log."""


class NoSuchLedgerError(CallerError):
    """The metadata store holds no such ledger."""


class NoSuchEntryError(CallerError):
    """The entry is known not to exist (beyond the end of a closed ledger, or never written)."""


class LedgerClosedError(CallerError):
    """The handle or the ledger is closed: no entry can be added."""


class LedgerExistsError(CallerError):
    """There is a ledger of the id that was asked for. Apache's client code -20."""


class DuplicateEntryError(CallerError):
    """An entry of this id was added before. Apache's client code -22."""


class EntryGapError(CallerError):
    """Entries wait for others with lower ids, which nobody added in time; the text names these."""

    retriable = True


class LedgerFencedError(CallerError):
    """Another client fenced the ledger (recovery); this writer has lost it."""


class NoSuchLogError(CallerError):
    """There is no log of this name."""


class LogExistsError(CallerError):
    """A log of this name exists already."""


class LogReplacedError(CallerError):
    """The log was deleted and made again under its name: what belongs to the old one is refused."""


class LogRangeGoneError(CallerError):
    """Offsets that are not in the log: dropped by truncation, retention or overwrite, or not yet written."""


class LogTailOpenError(CallerError):
    """A log writer holds the log's tail open; a transactional commit must wait until it is sealed."""


class LogFencedError(CallerError):
    """A log writer has lost its place: another took the tail over, or a commit sealed it.

    ``acknowledged_offset``, as far as known: entries below it are in the log.
    """

    acknowledged_offset: int | None = None


class RunRetiredError(CallerError):
    """Another run of the same application has taken over: this one may commit no more."""


class BatchRefusedError(CallerError):
    """Another query has committed this batch, or a later one, under the same application name."""


class LedgerRefusedError(CallerError):
    """A ledger, or entries of it, that a commit names cannot become part of the log."""


# --- a peer -------------------------------------------------------------------------------------


class PeerError(BookKeeperError):
    """A bookie did not do what was asked."""

    retriable = True


class WireFormatError(PeerError):
    """Bytes from the peer are not a frame of the protocol."""

    retriable = False


class BookieUnavailableError(PeerError):
    """No connection to the bookie, or the connection broke with requests outstanding."""


class BookieTimeoutError(PeerError):
    """The bookie did not answer in time."""


class BookieAnswerError(PeerError):
    """The bookie answered with an error code."""


class RequestRefusedError(PeerError):
    """The bookie does not understand the request: another release, or an operation that it lacks."""

    retriable = False


class DigestMismatchError(PeerError):
    """An entry's digest, ledger id or entry id is not what it should be."""


class NotEnoughBookiesError(PeerError):
    """Fewer usable bookies than the ensemble needs."""


class EntryUnknownError(PeerError):
    """No replica could say whether the entry exists: neither present nor absent."""


#: What helps where bookies that hold what is asked for give no answer.
AWAY_REMEDY: Final = (
    "see that these bookies run and can be reached from here (bkctl doctor looks at each), then try again: what they "
    "hold is there again when they are"
)


class AddQuorumTimeoutError(PeerError):
    """An entry did not reach its ack quorum in time; the writer has ended. Apache's client code -21."""

    retriable = False


class EnsembleChangeRefusedError(PeerError):
    """A bookie of the ensemble failed, and this writer may not replace it: it has ended."""

    retriable = False


# --- storage ------------------------------------------------------------------------------------


class StorageError(BookKeeperError):
    """A bookie's own files or disks."""


class CorruptFileError(StorageError):
    """A file of the bookie holds what its format forbids; the text names file and position."""


class CookieMismatchError(StorageError):
    """A directory belongs to another bookie or cluster."""


# --- metadata -----------------------------------------------------------------------------------


class MetadataError(BookKeeperError):
    """ZooKeeper, or what it holds."""


class MetadataUnavailableError(MetadataError):
    """ZooKeeper cannot be reached, or did not answer in time."""

    retriable = True


class OutcomeUnknownError(MetadataUnavailableError):
    """The connection was lost while a change was under way: it may or may not have taken effect.

    Whoever catches it must ``sync``, read, and decide; never send the change again blindly.
    """

    retriable = False


class MetadataConflictError(MetadataError):
    """A compare-and-set lost against another client."""

    retriable = True


class ClockDifferenceError(MetadataError):
    """This machine's clock and ZooKeeper's disagree; the text says by how much."""


class NodeExistsError(MetadataConflictError):
    """The znode to create exists already."""

    retriable = False


class NoNodeError(MetadataConflictError):
    """The znode to change does not exist."""

    retriable = False


class MetadataFormatError(MetadataError):
    """A znode holds what its format forbids, or a format version this release does not know."""
