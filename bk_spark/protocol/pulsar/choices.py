"""What a reader of a topic may choose. Nothing is imported here, so that options can name it."""

from __future__ import annotations

from enum import Enum


class EncryptedPayloads(Enum):
    """What to do with encrypted messages."""

    FAIL = "fail"
    """They are an error."""
    SKIP = "skip"
    """They make no rows."""
    RAW = "raw"
    """One row for each entry, with the cipher text as its value."""


class ValueErrors(Enum):
    """What to do with values that do not have the form of their schema."""

    FAIL = "fail"
    """They are an error."""
    NULL = "null"
    """They are null."""
