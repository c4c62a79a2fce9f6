"""Fields of one protobuf message, read without generated classes. Source: protobuf's encoding.

A message is a sequence of tags and values. Unknown fields are read like known ones, so no message fails because a newer
release wrote it. Entries of topics have a reader of their own for many messages at once, ``field_columns``.
"""

from __future__ import annotations

from typing import Final

#: Bytes of the longest varint: negative numbers have as many.
MAX_VARINT_BYTES: Final = 10
_MASK_64: Final = (1 << 64) - 1


class FieldError(Exception):
    """The bytes are not a protobuf message. Callers raise an error that says what they should be."""


class Fields:
    """The fields of a message by number.

    Parameters
    ----------
    data
        The bytes of the message.

    Raises
    ------
    FieldError
        If a length or a number reaches beyond the end, or a wire type is unknown.
    """

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes | None]] = {}
        at, end = 0, len(data)
        while at < end:
            tag, at = varint_at(data, at, end)
            kind = tag & 7
            value: int | bytes | None
            if not tag >> 3:
                raise FieldError(f"field 0 at byte {at}")
            if kind == 0:
                value, at = varint_at(data, at, end)
            else:
                if kind == 2:
                    size, at = varint_at(data, at, end)
                elif kind in (1, 5):
                    size = 8 if kind == 1 else 4
                else:
                    raise FieldError(f"wire type {kind} at byte {at}")
                if size > end - at:
                    raise FieldError(f"a field of {size} bytes at byte {at}, where {end - at} are left")
                # Pulsar has no fields of four or eight bytes, so they are skipped.
                value, at = data[at : at + size] if kind == 2 else None, at + size
            self._values.setdefault(tag >> 3, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def number(self, number: int, default: int = 0) -> int:
        """Return an unsigned number, the last one if there are several."""
        found = default
        for value in self._values.get(number, ()):
            if not isinstance(value, int):
                raise FieldError(f"field {number} is not a number")
            found = value
        return found

    def signed(self, number: int, default: int = 0) -> int:
        """Return a number of 64 bits with its sign."""
        value = self.number(number, default)
        return value - (1 << 64) if value >> 63 > 0 else value

    def data(self, number: int) -> bytes | None:
        """Return bytes, the last ones if there are several, or None if the field is absent."""
        values = self.all_data(number)
        return values[-1] if values else None

    def text(self, number: int) -> str:
        """Return text, empty if the field is absent. Bytes that are not UTF-8 are replaced, as Java does."""
        return (self.data(number) or b"").decode("utf-8", "replace")

    def message(self, number: int) -> Fields | None:
        """Return a message within this one, or None if the field is absent."""
        value = self.data(number)
        return None if value is None else Fields(value)

    def messages(self, number: int) -> list[Fields]:
        """Return all messages of a repeated field."""
        return [Fields(value) for value in self.all_data(number)]

    def texts(self, number: int) -> dict[str, str]:
        """Return a repeated field of messages, 1: key, 2: value, as a dictionary. The last of equal keys counts."""
        return {pair.text(1): pair.text(2) for pair in self.messages(number)}

    def all_data(self, number: int) -> list[bytes]:
        """Return the bytes of a repeated field. Raises FieldError if one of them is a number."""
        values = self._values.get(number, ())
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) < len(values):
            raise FieldError(f"field {number} is not bytes")
        return found


def varint_at(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the number at ``at``, of 64 bits, and where it ends. Raises FieldError if that is beyond ``end``."""
    value = 0
    for place, byte in enumerate(data[at : min(at + MAX_VARINT_BYTES, end)]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & _MASK_64, at + place + 1
    raise FieldError(f"a number at byte {at} has no end")


def varint(value: int) -> bytes:
    """Return an unsigned number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
