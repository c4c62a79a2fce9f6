"""Znodes of ours beside Apache's below ``underreplication``, which Apache's tools do not read.

================================ ==================================================================================
path                             content
================================ ==================================================================================
``progress/<check>``             how far a check of the auditor has come: ``bk_spark progress 1 LF <ledger id> LF``
``progress/audited_delay``       ``lostBookieRecoveryDelay`` as the last complete search for lost bookies knew it:
                                 ``bk_spark delay 1 LF <milliseconds> <version of its znode> LF``
``reasons/urL<ledger id>``       why a ledger could not be repaired: ``bk_spark reason 1 LF <attempts> LF <text>``
================================ ==================================================================================

A ledger id has ten digits, or more if it needs them. The number in the first line is the format version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata.ledger_paths import MAX_LEDGER_ID

_PROGRESS: Final = b"bk_spark progress 1\n"
_DELAY: Final = b"bk_spark delay 1\n"
_REASON: Final = b"bk_spark reason 1\n"
MAX_REASON_CHARACTERS: Final = 2000
_MAX_DIGITS: Final = len(str(MAX_LEDGER_ID))


def progress_path(root: str, check: str) -> str:
    """Return the path of a check's progress. ``root`` is the cluster's root."""
    return f"{root}/underreplication/progress/{check}"


def reasons_path(root: str) -> str:
    """Return the parent of all reasons."""
    return f"{root}/underreplication/reasons"


def reason_path(root: str, ledger_id: int) -> str:
    """Return the path of the reason why a ledger could not be repaired."""
    return f"{reasons_path(root)}/urL{ledger_id:010d}"


def encode_progress(after: int) -> bytes:
    """Return the content of a progress znode. ``after`` is the last ledger that was checked."""
    return _PROGRESS + f"{after}\n".encode()


def decode_progress(data: bytes) -> int:
    """Return the last ledger that was checked. Raises MetadataFormatError, also for another version."""
    body = data.removeprefix(_PROGRESS)
    if body == data or not body.endswith(b"\n") or not _is_count(body[:-1]):
        raise MetadataFormatError("the progress of an auditor's check has an unknown format or version")
    return int(body)


def audited_delay_path(root: str) -> str:
    """Return the path of the delay that the last complete search for lost bookies knew."""
    return f"{root}/underreplication/progress/audited_delay"


def encode_audited_delay(delay_ms: int, version: int) -> bytes:
    """Return the content of that znode. ``version`` is that of the znode with the delay, -1 if there was none."""
    return _DELAY + f"{delay_ms} {version}\n".encode()


def decode_audited_delay(data: bytes) -> tuple[int, int]:
    """Return delay in ms and version. Raises MetadataFormatError, also for another version of the format."""
    try:
        delay_ms, version = map(int, data.removeprefix(_DELAY).split())
    except ValueError:
        delay_ms = -1
    if not data.startswith(_DELAY) or delay_ms < 0:
        raise MetadataFormatError("the delay of the last search for lost bookies has an unknown format or version")
    return delay_ms, version


@dataclass(frozen=True, slots=True)
class RepairFailure:
    """Why a ledger could not be repaired, and how often the worker that said so has tried."""

    reason: str
    attempts: int

    def encode(self) -> bytes:
        """Return the content of the znode. A long reason is cut off."""
        return _REASON + f"{self.attempts}\n{self.reason[:MAX_REASON_CHARACTERS]}".encode()

    @classmethod
    def decode(cls, data: bytes) -> RepairFailure:
        """Raises MetadataFormatError, also for another version."""
        attempts, _, reason = data.removeprefix(_REASON).partition(b"\n")
        if not data.startswith(_REASON) or not _is_count(attempts):
            raise MetadataFormatError("the reason of a failed repair has an unknown format or version")
        return cls(reason.decode("utf-8", "replace"), int(attempts))


def _is_count(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= _MAX_DIGITS
