"""Reading protobuf's text format, in which Apache keeps cookies, marks, locks and votes."""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from bk_spark.protocol.errors import MetadataFormatError

#: Characters of the parser's own text that an error repeats: it may quote the whole content.
_SHOWN: Final = 200
_M = TypeVar("_M", bound=Message)


def parse_text(kind: type[_M], content: bytes, source: str, what: str) -> _M:
    """Parse a message. Raises MetadataFormatError, which says that ``source`` is not ``what``."""
    message = kind()
    try:
        text_format.Parse(content.decode("utf-8"), message)
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise MetadataFormatError(f"{source} is not {what}: {str(error)[:_SHOWN]}") from error
    return message
