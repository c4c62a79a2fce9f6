"""Journals, damaged anywhere, with seals that fit what they seal or not."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import JournalItem
from bookie_server.storage.journal.journal_header import holds_records
from bookie_server.storage.journal.journal_reader import JournalReader
from bookie_server.storage.journal.located_record import located_record, parse_located
from bookie_server.storage.records import Records
from tests.fuzz.damage import COUNT, EDGES, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.fuzz.small_files import CHUNKS_BYTES, ID, file_with
from tests.support.entry_log_building import record

#: Without its length.
_LOCATED: Final = located_record(
    Records(np.arange(3), np.arange(3), np.arange(3) - 1, memoryview(bytes(120)), np.arange(4) * 40),
    np.arange(3) * 40 + (7 << 32 | 1028),
)[4:]
_RECORD: Final = st.one_of(
    st.builds(record, ID, ID, st.integers(32, 60)),
    st.builds(record, st.just(3), ID, st.just(40)),
    st.builds(journal.master_key_record, ID, st.binary(max_size=20)),
    st.builds(journal.fence_record, ID),
    st.builds(journal.explicit_lac_record, ID, st.binary(max_size=20)),
)
_GROUPS: Final = st.lists(st.lists(_RECORD, min_size=1, max_size=12).map(b"".join), max_size=4)


def _sealed(groups: list[bytes], zeros: int) -> bytes:
    """A journal of ours. Each content has a nonce of its own, as each file has."""
    nonce = hashlib.sha256(b"|".join(groups)).digest()[: journal.NONCE_BYTES]
    content = journal.file_header(nonce)
    for group in groups:
        content += group + journal.group_end(nonce, len(content), [group], len(group))
    return content + bytes(zeros)


def _apaches(groups: list[bytes], zeros: int, version: int) -> bytes:
    content = (journal.MAGIC + version.to_bytes(4, "big")).ljust(512 if version >= 5 else 8, b"\0")
    for group in groups:
        content += group
        if version >= 5:
            fill = -(len(content) + 8) % journal.ALIGNMENT_BYTES
            content += journal.PADDING.pack(journal.PADDING_MASK, fill) + bytes(fill)
    return content + bytes(zeros)


_ZEROS: Final = st.sampled_from([0, 0, 3, 512, 4096])
_OURS: Final = st.builds(_sealed, _GROUPS, _ZEROS)
_JOURNALS: Final = _OURS | st.builds(_apaches, _GROUPS, _ZEROS, st.integers(2, 6))


def _said(items: list[JournalItem]) -> list[Any]:
    """Each record of a journal."""
    said: list[Any] = []
    for item in items:
        if isinstance(item, Records):
            said += [bytes(item.data[a:b]) for a, b in zip(item.offsets[:-1], item.offsets[1:], strict=True)]
        else:
            said.append((type(item).__name__, *(getattr(item, name) for name in item.__slots__)))  # type: ignore[attr-defined]
    return said


def _read_journal(content: bytes, offset: int = 0, *, may_end_torn: bool = True) -> list[Any] | Refused:
    with file_with("1.txn", content) as path:
        holds_records(str(path))
        reader = JournalReader(str(path), offset, may_end_torn=may_end_torn)
        read = outcome(lambda: list(reader.items()), CorruptFileError, names="1.txn", limit_bytes=CHUNKS_BYTES)
        assert isinstance(read, Refused) or reader.position <= max(len(content), offset)
    return read if isinstance(read, Refused) else _said(read)


@fuzz(40, whole=_OURS, data=st.data())
def test_journals_of_ours(whole: bytes, data: st.DataObject) -> None:
    """What a damaged journal gives are the first of its records, unless its header is another one."""
    content = data.draw(hostile(st.just(whole) | _JOURNALS))
    read = _read_journal(content, may_end_torn=data.draw(st.booleans()))
    if not isinstance(read, Refused) and content[: journal.HEADER_BYTES] == whole[: journal.HEADER_BYTES]:
        written = _read_journal(whole)
        assert not isinstance(written, Refused)
        assert read == written[: len(read)]


@fuzz(40, content=hostile(_JOURNALS), offset=st.sampled_from([0, 8, 512, 1024]) | st.integers(-1, 4096) | COUNT)
def test_journals_from_a_mark(content: bytes, offset: int) -> None:
    _read_journal(content, max(offset, 0))


@fuzz(40, groups=_GROUPS, zeros=_ZEROS, version=st.integers(2, 6))
def test_journals_are_read_as_they_were_written(groups: list[bytes], zeros: int, version: int) -> None:
    ours, theirs = _read_journal(_sealed(groups, zeros)), _read_journal(_apaches(groups, zeros, version))
    assert ours == theirs
    assert not isinstance(ours, Refused)
    entries = [one for one in ours if isinstance(one, bytes)]
    assert b"".join(entries) == b"".join(one for one in entries if one in b"".join(groups))
    assert len(ours) == sum(map(_count, groups))


def _count(group: bytes) -> int:
    count = 0
    while group:
        group = group[4 + int.from_bytes(group[:4], "big") :]
        count += 1
    return count


# --- one thing is wrong -----------------------------------------------------------------------------

_SOME_GROUPS: Final = st.lists(st.lists(_RECORD, min_size=1, max_size=5).map(b"".join), min_size=1, max_size=4)


def _begins(groups: list[bytes]) -> list[int]:
    """Where each group begins, and where the last one ends."""
    return [len(_sealed(groups[:count], 0)) for count in range(len(groups) + 1)]


def _records(groups: list[bytes]) -> list[Any]:
    """What these groups say, read from a journal of their own."""
    read = _read_journal(_sealed(groups, 0))
    assert not isinstance(read, Refused)
    return read


@fuzz(
    120,
    groups=_SOME_GROUPS,
    which=st.integers(0, 3),
    way=st.sampled_from(["flip", "flip", "seal", "zeros", "cut"]),
    place=st.integers(0, 9_999),
    may_end_torn=st.sampled_from([True, True, False]),
)
def test_a_broken_group_is_torn_or_damage(
    groups: list[bytes], which: int, way: str, place: int, may_end_torn: bool
) -> None:
    """If no group follows, it is torn, and none of it counts. Groups that follow prove that it is damaged."""
    which %= len(groups)
    begin, group = _begins(groups)[which], groups[which]
    content = bytearray(_sealed(groups, 0))
    if way == "flip":
        content[begin + place % len(group)] ^= 1 << place % 8
    elif way == "seal":
        content[begin + len(group) + place % (journal.PADDING.size + journal.SEAL.size)] ^= 1 << place % 8
    elif way == "zeros":
        # From somewhere on, which changes at least one byte.
        first = begin + place % len(group.rstrip(b"\0"))
        content[first : begin + len(group)] = bytes(begin + len(group) - first)
    else:
        del content[begin + 1 + place % len(group) :]
        groups = groups[: which + 1]
    read = _read_journal(bytes(content), may_end_torn=may_end_torn)
    is_torn = any(content[begin:])
    if which < len(groups) - 1 or (is_torn and not may_end_torn):
        assert isinstance(read, Refused)
    else:
        assert read == _records(groups[:which])


@fuzz(60, groups=_SOME_GROUPS, which=st.integers(0, 3), to=st.integers(0, 3), is_copied=st.booleans())
def test_a_group_counts_only_in_its_place(groups: list[bytes], which: int, to: int, is_copied: bool) -> None:
    """Whole groups of the file, with right seals, prove nothing where they were not written."""
    begins, content = _begins(groups), _sealed(groups, 0)
    header = content[: journal.HEADER_BYTES]
    parts = [content[first:last] for first, last in itertools.pairwise(begins)]
    part = parts[which % len(parts)] if is_copied else parts.pop(which % len(parts))
    parts.insert(to % (len(parts) + 1), part)
    read = _read_journal(header + b"".join(parts))
    if not isinstance(read, Refused):
        assert read in [_records(groups[:count]) for count in range(len(groups) + 1)]


@fuzz(60, groups=_SOME_GROUPS, which=st.integers(0, 3), place=st.just(0) | st.integers(0, 9_999))
def test_a_mark_is_where_a_group_begins(groups: list[bytes], which: int, place: int) -> None:
    which %= len(groups)
    inside = place % len(groups[which])
    read = _read_journal(_sealed(groups, 0), _begins(groups)[which] + inside)
    if inside:
        assert isinstance(read, Refused)
    else:
        assert read == _records(groups)[len(_records(groups[:which])) :]


@fuzz(
    60,
    kind=st.sampled_from([journal.MASTER_KEY_RECORD, journal.EXPLICIT_LAC_RECORD, journal.FENCE_RECORD, -7]),
    rest=st.binary(max_size=30),
    size=st.integers(-1, 40) | st.sampled_from(EDGES),
)
def test_what_a_sealed_record_claims(kind: int, rest: bytes, size: int) -> None:
    """A length in a record that is more than the record has makes nothing of it."""
    size = max(-(2**31), min(size, 2**31 - 1))
    body = journal.IDS.pack(5, kind) + (b"" if kind == journal.FENCE_RECORD else journal.I32.pack(size) + rest)
    read = _records([journal.I32.pack(len(body)) + body, record(5, 1, 40)])
    names = {journal.MASTER_KEY_RECORD: "MasterKeyRecord", journal.EXPLICIT_LAC_RECORD: "ExplicitLacRecord"}
    wanted: list[Any] = [("FenceRecord", 5)] if kind == journal.FENCE_RECORD else []
    if kind in names and 0 <= size <= len(rest):
        wanted = [(names[kind], 5, rest[:size])]
    assert read == [*wanted, record(5, 1, 40)]


@fuzz(100, size=st.integers(0, len(_LOCATED) + 8), at=st.integers(0, len(_LOCATED)), damage=st.binary(max_size=8))
def test_a_record_about_entry_logs_is_read_whole_or_refused(size: int, at: int, damage: bytes) -> None:
    """Nothing of it is left out silently: its entries were acknowledged."""
    body = (_LOCATED[:at] + damage + _LOCATED[at + len(damage) :])[:size]
    found = outcome(lambda: parse_located(body), CorruptFileError)
    if isinstance(found, Refused):
        assert body != _LOCATED
        return
    assert len(found.entry_ids) == 3
    assert (found.locations > 0).all()
    assert (found.entry_ids >= 0).all()
