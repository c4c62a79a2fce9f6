"""Eight bytes from each of many places in a buffer, and the numbers of protobuf in them, all at once.

A number is of seven bits a byte, the lowest first. Source: protobuf's encoding, "Base 128 Varints".
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.pulsar.fields import MAX_VARINT_BYTES
from bk_spark.protocol.pulsar.messages.layouts import Layout

UInt64s = npt.NDArray[np.uint64]

#: Bytes after the end of the last message that a step may read.
PADDING_BYTES: Final = 32
_TOPS: Final = np.uint64(0x8080808080808080)
_SEVENS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_EIGHT: Final = np.uint64(8)
_FIFTY_SIX: Final = np.uint64(56)
_SEVEN: Final = np.uint64(0x7F)
_BYTE: Final = np.uint64(0xFF)


class Words:
    """A buffer of which eight bytes can be read anywhere, for many places at once.

    Parameters
    ----------
    data
        The bytes, of which the last :data:`PADDING_BYTES` belong to nothing.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        if len(data) < PADDING_BYTES:
            raise ValueError(f"a buffer of {len(data)} bytes has no padding")
        self.data = data
        self._words: UInt64s = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))

    def at(self, places: Int64s) -> UInt64s:
        """Return the eight bytes at each place, the first one lowest."""
        return self._words[places]

    def fit(self, layout: Layout, places: Int64s) -> Bools:
        """Return which messages of the layout's size, by their places, are laid out so."""
        return layout.fits(self._words, places)

    def big_endian_32(self, places: Int64s) -> Int64s:
        """Return the unsigned number of four bytes at each place."""
        return (self._words[places].byteswap() >> np.uint64(32)).view(np.int64)

    def big_endian_64(self, places: Int64s) -> Int64s:
        """Return the signed number of eight bytes at each place."""
        return self._words[places].byteswap().view(np.int64)


def varints(words: Words, at: Int64s, word: UInt64s, known: int, end: Int64s) -> tuple[UInt64s, Int64s, Bools]:
    """Read the number at each place.

    Parameters
    ----------
    words, at
        Where the numbers are.
    word, known
        The lowest ``known`` bytes of these are those at the places. The rest is zero.
    end
        Where each message ends.

    Returns
    -------
    tuple
        The numbers, where they end, and which of them are numbers that end within their messages.
    """
    stops = _stops(word, known)
    if not stops.all():
        long = np.flatnonzero(stops == 0)
        return _long_varints(words, at, word, known, end, long)
    upto = stops ^ (stops - _ONE)
    after = at + (np.bitwise_count(upto) >> 3)
    return without_tops(word & upto), after, after <= end


def varint_ends(words: Words, at: Int64s, word: UInt64s, known: int, end: Int64s) -> tuple[Int64s, Bools]:
    """:func:`varints` without the numbers."""
    stops = _stops(word, known)
    if not stops.all():
        _, after, sound = varints(words, at, word, known, end)
        return after, sound
    after = at + (np.bitwise_count(stops ^ (stops - _ONE)) >> 3)
    return after, after <= end


def _stops(word: UInt64s, known: int) -> UInt64s:
    """Return a bit for each of the lowest ``known`` bytes that no other byte of its number follows."""
    stops = ~word & _TOPS
    if known < 8:
        stops &= np.uint64((1 << 8 * known) - 1)
    return stops


def without_tops(word: UInt64s) -> UInt64s:
    """Join the lower seven bits of the eight bytes of each word."""
    word = word & _SEVENS
    word = (word & np.uint64(0x007F007F007F007F)) | ((word & np.uint64(0x7F007F007F007F00)) >> _ONE)
    word = (word & np.uint64(0x00003FFF00003FFF)) | ((word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (word & np.uint64(0x0FFFFFFF)) | ((word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))


def _long_varints(
    words: Words, at: Int64s, word: UInt64s, known: int, end: Int64s, long: Int64s
) -> tuple[UInt64s, Int64s, Bools]:
    """Read numbers of which those in ``long`` have more bytes than are known."""
    if known < 8:
        word = words.at(at)
        return varints(words, at, word, 8, end)
    # Nine or ten bytes: numbers above 2⁵⁶, such as negative ones.
    word = word.copy()
    low = without_tops(word[long])
    rest = words.at(at[long] + 8)
    word[long] = 0
    values, after, sound = varints(words, at, word, 8, end)
    ninth, tenth = rest & _BYTE, (rest >> _EIGHT) & _BYTE
    two = ninth >= 0x80
    values[long] = low | (ninth & _SEVEN) << _FIFTY_SIX | np.where(two, tenth << np.uint64(63), _ZERO)
    after[long] = at[long] + np.where(two, MAX_VARINT_BYTES, MAX_VARINT_BYTES - 1)
    sound[long] = (after[long] <= end[long]) & ~(two & (tenth >= 0x80))
    return values, after, sound


def end_of(body_at: Int64s, size: UInt64s, end: Int64s, sound: Bools) -> Int64s:
    """Return where bytes end. Those that reach beyond their message are marked in ``sound`` as not so."""
    left = np.maximum(end - body_at, 0).view(np.uint64)
    sound &= size <= left
    after: Int64s = body_at + np.minimum(size, left).view(np.int64)
    return after
