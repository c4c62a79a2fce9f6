"""What bookies send to a client: v2 and v3 answers, lists of entries, stored entries."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_lac, verify_entry, verify_lac, verify_records
from bk_spark.protocol.errors import DigestMismatchError, WireFormatError
from bk_spark.protocol.wire import answers_v2
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from bk_spark.protocol.wire.entry_availability import EntryAvailability, decode_availability, encode_availability
from bk_spark.protocol.wire.framing import Frames, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.stored_adds import cut_records
from bk_spark.protocol.wire.v3 import answers_v3, wire_v3
from tests.fuzz.answers import DIGEST, LEDGER, RECORDS, SMALL, V2, V3, stored_entry
from tests.fuzz.damage import EDGES, INT64, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, bounded, outcome
from tests.fuzz.messages import messages
from tests.support.bookie import PASSWORD
from tests.support.wire import frames


def _bodies(stream: SearchStrategy[bytes]) -> SearchStrategy[list[bytes]]:
    whole = stream.map(lambda data: bytes(next(iter(frames(data)))))
    return st.builds(
        lambda parts: [body for body, count in parts for _ in range(count)],
        st.lists(st.tuples(whole | hostile(whole), st.sampled_from([1, 1, 9, 30])), min_size=1, max_size=4),
    )


def _framed(bodies: list[bytes]) -> Frames:
    return frames(list(map(frame, bodies)))


def _rows(answers: Any) -> Counter[Any]:
    """What each answer says, whatever the order."""
    said: Counter[Any] = Counter()
    for one in answers:
        if isinstance(one, AddAnswers):
            said.update(zip(one.ledger_ids.tolist(), one.entry_ids.tolist(), one.codes.tolist(), strict=True))
        else:
            said[str(one)] += 1
    return said


@fuzz(65, bodies=_bodies(V2))
def test_v2_answers(bodies: list[bytes]) -> None:
    """Together they are what they are one by one, or refused."""
    _together_as_alone(answers_v2.parse_answers, bodies)


@fuzz(65, bodies=_bodies(V3))
def test_v3_answers(bodies: list[bytes]) -> None:
    """Together they are what they are one by one, or refused."""
    _together_as_alone(answers_v3.parse_answers, bodies)


def _together_as_alone(parse: Any, bodies: list[bytes]) -> None:
    together = outcome(lambda: list(parse(_framed(bodies))), WireFormatError)
    alone = [outcome(lambda body=body: list(parse(_framed([body]))), WireFormatError) for body in dict.fromkeys(bodies)]  # type: ignore[misc]
    assert isinstance(together, Refused) == any(isinstance(one, Refused) for one in alone)
    if not isinstance(together, Refused):
        counts = Counter(bodies)
        said: Counter[Any] = Counter()
        for body, one in zip(dict.fromkeys(bodies), alone, strict=True):
            for what, times in _rows(one).items():
                said[what] += times * counts[body]
        assert _plain(_rows(together)) == _plain(said)


def _plain(said: Counter[Any]) -> Counter[Any]:
    """Without where a view lies in memory."""
    plain: Counter[Any] = Counter()
    for what, times in said.items():
        plain[what.partition("<memory")[0] if isinstance(what, str) else what] += times
    return plain


_LISTS: Final = st.lists(st.integers(0, 60), max_size=20, unique=True).map(
    lambda ids: encode_availability(np.array(sorted(ids), np.int64))
)


#: First start, last start, size, period.
_GROUP: Final = struct.Struct(">qqii")


@st.composite
def _groups(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Groups in order."""
    at, groups = draw(st.sampled_from([0, 0, 5, 2**40, 2**63 - 300])), []
    for _ in range(draw(st.integers(1, 4))):
        size, runs = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        period = 0 if runs == 1 else draw(st.integers(size + 1, size + 4))
        last = at + (runs - 1) * period
        groups.append((at, last, size, period))
        at = last + size + draw(st.sampled_from([0, 0, 1, 7]))
    return groups


def _with_other_numbers(groups: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """All lists in which one number is another one: near it, another of its group, or an extreme one."""
    yield groups
    for at, group in enumerate(groups):
        for field, number in enumerate(group):
            bits = 63 if field < 2 else 31
            for other in {number - 1, number + 1, -number, *group, 2**bits - 1, -(2**bits)} - {number}:
                if -(2**bits) <= other < 2**bits:
                    changed = (*group[:field], other, *group[field + 1 :])
                    yield [*groups[:at], changed, *groups[at + 1 :]]


def _is_sound(groups: list[tuple[int, ...]]) -> bool:
    """Whether the format allows these groups, which do not overlap."""
    end = 0
    for first, last, size, period in groups:
        one_run = period == 0 and first == last
        several = period > size and last > first and (last - first) % period == 0
        if not (end <= first and size > 0 and (one_run or several) and last <= 2**63 - 1 - size):
            return False
        end = last + size
    return True


@fuzz(15, valid=_groups())
def test_groups_of_lists_of_entries(valid: list[tuple[int, ...]]) -> None:
    """A list is accepted if all its groups are right, and then names what they name."""
    for groups in _with_other_numbers(valid):
        data = struct.pack(">ii56x", 0, len(groups)) + b"".join(_GROUP.pack(*group) for group in groups)
        found = outcome(lambda data=data: decode_availability(data), WireFormatError)  # type: ignore[misc]
        assert isinstance(found, EntryAvailability) == _is_sound(groups)
        if isinstance(found, EntryAvailability) and found.count < 1000:
            runs = [
                range(start, start + size)
                for first, last, size, period in groups
                for start in range(first, last + 1, period or 1)
            ]
            assert list(found.ranges()) == runs


@fuzz(60, data=hostile(_LISTS), asked=st.integers(0, 2**62) | st.sampled_from([e for e in EDGES if e >= 0]))
def test_lists_of_entries(data: bytes, asked: int) -> None:
    """A list that is accepted answers all questions about it, however many entries it claims."""
    found = outcome(lambda: decode_availability(data), WireFormatError)
    if isinstance(found, EntryAvailability):
        with bounded():
            assert found.count >= 0
            assert found.count == 0 or next(found.ranges()).start in found
            ids = range(asked, min(asked + 50, 2**63 - 1))
            assert list(found.lacking(ids)) == [entry_id for entry_id in ids if entry_id not in found]


@fuzz(50, ids=st.lists(st.integers(0, 2**40) | st.integers(0, 60), max_size=30, unique=True))
def test_lists_of_entries_are_read_as_they_were_made(ids: list[int]) -> None:
    found = decode_availability(encode_availability(np.array(sorted(ids), np.int64)))
    assert [entry_id for part in found.ranges() for entry_id in part] == sorted(ids)


@fuzz(120, data=hostile(RECORDS), first=SMALL, digest_type=st.sampled_from(DigestType))
def test_records_of_a_batch_read(data: bytes, first: int, digest_type: DigestType) -> None:
    """What is returned was written so, entry by entry."""
    digest = digest_function(digest_type, PASSWORD)
    found = outcome(
        lambda: verify_records(memoryview(data), LEDGER, first, digest_type, digest),
        WireFormatError,
        DigestMismatchError,
        names=f"ledger {LEDGER}",
    )
    cut = outcome(lambda: list(cut_records(memoryview(data))))
    if not isinstance(found, Refused):
        stored = [verify_entry(one, LEDGER, first + i, digest_type, digest) for i, one in enumerate(cut[: len(found)])]  # type: ignore[index]
        assert [bytes(one.payload) for one in stored] == list(map(bytes, found.payloads))
        assert found.max_lac == max(-1, *(one.last_add_confirmed for one in stored))


@fuzz(50, payloads=st.lists(st.binary(max_size=30), min_size=1, max_size=30), first=st.integers(0, 2**62))
def test_records_are_read_as_they_were_made(payloads: list[bytes], first: int) -> None:
    records = b"".join(frame(stored_entry(first + i, payload)) for i, payload in enumerate(payloads))
    block = verify_records(memoryview(records), LEDGER, first, DigestType.CRC32C, DIGEST)
    assert list(map(bytes, block.payloads)) == payloads


@fuzz(60, packet=hostile(st.builds(lambda lac: pack_lac(LEDGER, lac, DIGEST), INT64)), entry=hostile(RECORDS))
def test_one_entry_and_one_packet(packet: bytes, entry: bytes) -> None:
    outcome(lambda: verify_lac(packet, LEDGER, DigestType.CRC32C, DIGEST), DigestMismatchError)
    outcome(lambda: verify_entry(entry[4:], LEDGER, None, DigestType.CRC32C, DIGEST), DigestMismatchError)


@fuzz(40, answer=messages(pb.Response))
def test_fields_of_v3_answers(answer: pb.Response) -> None:
    """Whatever fields are there, each reading of them gives a value or the error."""
    outcome(lambda: wire_v3.read_answer(answer, LEDGER, 3), WireFormatError)
    outcome(lambda: wire_v3.lac_answer(answer))
    outcome(lambda: wire_v3.long_poll_answer(answer))
