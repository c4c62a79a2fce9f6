"""Znodes of a cluster (ledger metadata, cookies, LAYOUT, marks, registrations, notes), and its URI."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from google.protobuf import text_format
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.bookie.placement.rack_names import parse_rack_mapping, parse_rack_table
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata import ledger_metadata, replication_notes, under_replication
from bk_spark.protocol.metadata.cookie import Cookie, decode_directories, encode_directories
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.metadata.ledger_paths import LedgerManager, parse_layout
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.proto import data_formats_pb2 as pb
from bk_spark.protocol.metadata.registration import BookieServiceInfo, Endpoint
from bk_spark.protocol.metadata.replication_notes import MAX_REASON_CHARACTERS, RepairFailure
from bk_spark.protocol.metadata.under_replication import Mark, PeriodicCheck
from bk_spark.protocol.quorum import Quorum
from tests.fuzz.damage import COUNT, EDGES, INT64, deep, hostile, varint, with_long_number
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import MAX_TEXT, Refused, bounded, outcome
from tests.fuzz.messages import messages
from tests.support.fixtures import golden

#: Protobuf's parser of text takes unknown escapes, and octal ones beyond a byte, and warns of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*invalid (octal )?escape sequence:DeprecationWarning")

#: An error repeats a setting of the user's own, and a bookie's id, as a whole.
_OWN_TEXT: Final = 100_000
_WHERE: Final = "znode /ledgers/here"
#: No lone surrogates: protobuf and UTF-8 have none.
_TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=20)
_NAME: Final = st.text("abc.:-0123456789", min_size=1, max_size=12)


@st.composite
def _ledgers(draw: st.DrawFn) -> LedgerMetadata:
    sizes = sorted(draw(st.lists(st.integers(1, 4), min_size=3, max_size=3)))
    ack, write, ensemble = sizes
    firsts = sorted({0, *draw(st.lists(COUNT, max_size=3))})
    segments = [Segment(first, tuple(draw(st.lists(_NAME, min_size=ensemble, max_size=ensemble)))) for first in firsts]
    version, digest_type = draw(st.sampled_from([2, 3])), draw(st.none() | st.sampled_from(DigestType))
    metadata = LedgerMetadata(
        Quorum(ensemble, write, ack),
        tuple(segments),
        draw(st.sampled_from([LedgerState.OPEN, LedgerState.IN_RECOVERY])),
        digest_type=digest_type,
        password=None if digest_type is None else draw(st.binary(max_size=20)),
        creation_time_ms=draw(st.none() | INT64),
        custom_metadata=draw(st.dictionaries(_TEXT, st.binary(max_size=20), max_size=3)),
        creator_token=draw(st.none() | INT64.filter(bool)) if version == 3 else None,
        format_version=version,
    )
    return metadata.closed(draw(INT64), draw(INT64)) if draw(st.booleans()) else metadata


def _binary_ledger(message: pb.LedgerMetadataFormat) -> bytes:
    body = message.SerializeToString()
    return b"BookieMetadataFormatVersion\t3\n" + varint(len(body)) + body


def _text_ledger(message: pb.LedgerMetadataFormat) -> bytes:
    return b"BookieMetadataFormatVersion\t2\n" + text_format.MessageToString(message).encode()


_APACHES: Final = [bytes.fromhex(one["znode"]) for one in golden("metadata") if "znode" in one]
_LEDGERS: Final = st.one_of(
    _ledgers().map(ledger_metadata.encode),
    messages(pb.LedgerMetadataFormat).map(_binary_ledger),
    messages(pb.LedgerMetadataFormat).map(_text_ledger),
)


@fuzz(150, data=hostile(_LEDGERS))
def test_ledger_metadata(data: bytes) -> None:
    """What is accepted is consistent, and stays what it is when it is written again."""
    found = outcome(lambda: ledger_metadata.decode(data), MetadataFormatError, names="ledger")
    if isinstance(found, LedgerMetadata):
        assert found.segment_of(0) is found.segments[0]
        assert ledger_metadata.decode(ledger_metadata.encode(found)) == found
        assert "password" not in repr(found)


@fuzz(60, metadata=_ledgers())
def test_ledger_metadata_is_read_as_it_was_written(metadata: LedgerMetadata) -> None:
    assert ledger_metadata.decode(ledger_metadata.encode(metadata)) == metadata
    assert replace(ledger_metadata.decode(ledger_metadata.encode(metadata)), format_version=3) == replace(
        metadata, format_version=3
    )


_COOKIES: Final = st.builds(Cookie, _TEXT, _TEXT, _TEXT, st.none() | _TEXT, st.none() | _TEXT)
_COOKIE_BYTES: Final = st.one_of(
    _COOKIES.map(Cookie.encode),
    messages(pb.CookieFormat).map(lambda one: f"4\n{text_format.MessageToString(one)}".encode()),
    st.lists(_TEXT, min_size=1, max_size=5).map(lambda lines: "\n".join(["3", *lines]).encode()),
)


@fuzz(120, data=hostile(_COOKIE_BYTES))
def test_cookies(data: bytes) -> None:
    found = outcome(lambda: Cookie.decode(data, _WHERE), MetadataFormatError, names=_WHERE)
    if isinstance(found, Cookie):
        with bounded():
            assert found.differences(found) == []
            found.storage_directories()
        assert Cookie.decode(found.encode(), _WHERE) == found


@fuzz(40, cookie=_COOKIES, directories=st.lists(st.text("ab/", min_size=1), max_size=4))
def test_cookies_are_read_as_they_were_written(cookie: Cookie, directories: list[str]) -> None:
    assert Cookie.decode(cookie.encode(), _WHERE) == cookie
    assert decode_directories(encode_directories(directories)) == directories


_FACTORY_NAMES: Final = [manager.factory_class for manager in LedgerManager]
_LAYOUTS: Final = st.builds(
    "{}\n{}:{}{}".format,
    st.sampled_from(["2"] * 5 + ["1", "3", "02", "22", "\u0662", ""]),
    st.sampled_from(
        _FACTORY_NAMES * 3 + [_FACTORY_NAMES[0][:-1], "x" + _FACTORY_NAMES[1], "FlatLedgerManagerFactory", "a:b"]
    ),
    st.sampled_from(["1"] * 5 + ["2", "11", "01", "-1", ""]),
    st.sampled_from(["", "\n", "  \n", "x", "\n2"]),
).map(str.encode)


@fuzz(100, data=_LAYOUTS | hostile(_LAYOUTS))
def test_layouts(data: bytes) -> None:
    """Only the text of a layout is one."""
    found = outcome(lambda: parse_layout(data), MetadataFormatError, names="LAYOUT")
    by_text = {manager.layout.decode(): manager for manager in LedgerManager}
    wanted = by_text.get(data.decode("utf-8", "replace").rstrip())
    assert isinstance(found, Refused) if wanted is None else found is wanted


def _ports(registration: bytes) -> None:
    """A socket takes every port of a registration that is accepted."""
    for endpoint in BookieServiceInfo.decode(registration, "b:1").endpoints:
        assert 0 <= endpoint.port < 2**16


#: Name, how the content of a znode is read, and what makes valid content.
_NOTES: Final[dict[str, tuple[Callable[[bytes], Any], SearchStrategy[bytes], str]]] = {
    "mark": (
        lambda data: Mark.decode(data, 3, _WHERE).encode(),
        st.builds(Mark, st.lists(_TEXT, max_size=4).map(tuple), st.none() | INT64).map(Mark.encode),
        _WHERE,
    ),
    "layout": (
        lambda data: under_replication.check_layout(data, _WHERE),
        st.just(under_replication.LAYOUT)
        | messages(pb.LedgerRereplicationLayoutFormat).map(lambda one: text_format.MessageToString(one).encode()),
        _WHERE,
    ),
    "lock": (
        lambda data: under_replication.decode_lock(data, _WHERE),
        _TEXT.map(under_replication.encode_lock),
        _WHERE,
    ),
    "vote": (
        lambda data: under_replication.decode_vote(data, _WHERE),
        _TEXT.map(under_replication.encode_vote),
        _WHERE,
    ),
    "delay": (
        lambda data: under_replication.encode_recovery_delay(under_replication.decode_recovery_delay(data, _WHERE)),
        st.integers(0, 2**31 - 1).map(under_replication.encode_recovery_delay),
        _WHERE,
    ),
    "check time": (
        lambda data: under_replication.decode_check_time(PeriodicCheck.REPLICAS, data, _WHERE),
        INT64.map(lambda time_ms: under_replication.encode_check_time(PeriodicCheck.REPLICAS, time_ms)),
        _WHERE,
    ),
    "progress": (replication_notes.decode_progress, COUNT.map(replication_notes.encode_progress), "progress"),
    "audited delay": (
        replication_notes.decode_audited_delay,
        st.builds(replication_notes.encode_audited_delay, COUNT, st.integers(-1, 9)),
        "delay",
    ),
    "reason": (RepairFailure.decode, st.builds(RepairFailure, _TEXT, COUNT).map(RepairFailure.encode), "reason"),
    "registration": (
        _ports,
        messages(pb.BookieServiceInfoFormat).map(pb.BookieServiceInfoFormat.SerializeToString),
        "b:1",
    ),
    "bookie id": (
        lambda data: BookieServiceInfo.decode(b"", data.decode("utf-8", "replace")[:8_000]),
        st.just(b"host:3181"),
        "bookie",
    ),
    "racks": (
        parse_rack_mapping,
        st.dictionaries(
            _TEXT, st.dictionaries(_TEXT, st.dictionaries(_TEXT, st.none() | _TEXT, max_size=2), max_size=3)
        )
        .map(json.dumps)
        .map(str.encode),
        "rack",
    ),
}


@pytest.mark.parametrize("name", _NOTES)
@fuzz(40, data=st.data())
def test_small_znodes(name: str, data: st.DataObject) -> None:
    decode, valid, names = _NOTES[name]
    whole = st.one_of(valid, valid, valid, with_long_number(valid), st.builds(bytes.__add__, valid, deep()))
    content = data.draw(hostile(whole))
    outcome(
        lambda: decode(content),
        MetadataFormatError,
        names=names,
        max_text=_OWN_TEXT if name == "bookie id" else MAX_TEXT,
    )


#: Text of Apache's and of ours with one thing in it that may be wrong, whether it is right, and the reader.
_FORMS: Final[dict[str, tuple[str, Callable[[int], bool], Callable[[bytes], Any]]]] = {
    "delay": ("{}", lambda n: 0 <= n < 2**31, lambda data: under_replication.decode_recovery_delay(data, _WHERE)),
    "progress": ("bk_spark progress 1\n{}\n", lambda n: 0 <= n < 10**19, replication_notes.decode_progress),
    "version of progress": ("bk_spark progress {}\n5\n", lambda n: n == 1, replication_notes.decode_progress),
    "audited delay": ("bk_spark delay 1\n{} 3\n", lambda n: n >= 0, replication_notes.decode_audited_delay),
    "version of the delay": ("bk_spark delay {}\n5 3\n", lambda n: n == 1, replication_notes.decode_audited_delay),
    "reason": ("bk_spark reason 1\n{}\ntext", lambda n: 0 <= n < 10**19, RepairFailure.decode),
    "version of the reason": ("bk_spark reason {}\n5\ntext", lambda n: n == 1, RepairFailure.decode),
    "layout": (
        'type: "BASIC"\nversion: {}\n',
        lambda n: n == 1,
        lambda data: under_replication.check_layout(data, _WHERE),
    ),
    "bookie id": (
        "host:{}",
        lambda n: 0 <= n <= 65_535,
        lambda data: BookieServiceInfo.decode(b"", data.decode()),
    ),
}


@pytest.mark.parametrize("name", _FORMS)
def test_numbers_in_small_znodes(name: str) -> None:
    """A number is taken if its znode can have it."""
    form, is_right, decode = _FORMS[name]
    for number in (*EDGES, *range(-3, 10), 99_999, 10**18, 10**19):
        content = form.format(number).encode()
        found = outcome(lambda content=content: decode(content), MetadataFormatError)  # type: ignore[misc]
        assert isinstance(found, Refused) != is_right(number)


@fuzz(40, missing=st.lists(_TEXT, max_size=4, unique=True), time_ms=st.none() | INT64, after=COUNT, reason=_TEXT)
def test_small_znodes_are_read_as_they_were_written(
    missing: list[str], time_ms: int | None, after: int, reason: str
) -> None:
    mark = Mark(tuple(missing), time_ms, 5)
    assert Mark.decode(mark.encode(), 5, _WHERE) == mark
    assert under_replication.decode_lock(under_replication.encode_lock(reason), _WHERE) == reason
    assert under_replication.decode_vote(under_replication.encode_vote(reason), _WHERE) == reason
    assert replication_notes.decode_progress(replication_notes.encode_progress(after)) == after
    assert replication_notes.decode_audited_delay(replication_notes.encode_audited_delay(after, -1)) == (after, -1)
    failure = RepairFailure(reason[:MAX_REASON_CHARACTERS], after)
    assert RepairFailure.decode(failure.encode()) == failure
    info = BookieServiceInfo((Endpoint("bookie", reason, 7, "bookie-rpc", (reason,), ()),), {reason: reason})
    assert BookieServiceInfo.decode(info.encode(), "b:1") == info


@fuzz(80, name=st.text("urLV_-0123456789", max_size=30) | _TEXT, ledger_id=st.integers(0, 2**63 - 1))
def test_names_of_znodes(name: str, ledger_id: int) -> None:
    """A name is that of a ledger or a vote, or it is not; both ways give the same."""
    found = outcome(lambda: under_replication.locked_ledger(name))
    paths = under_replication.UnderReplicationPaths("/ledgers")
    assert found is None or paths.lock(found).endswith(f"/{name}")  # type: ignore[arg-type]
    assert under_replication.locked_ledger(paths.mark(ledger_id).rpartition("/")[2]) == ledger_id
    outcome(lambda: under_replication.vote_number(name))
    outcome(lambda: under_replication.is_mark_group(name))
    for manager in LedgerManager:
        outcome(lambda manager=manager: (manager.is_ledger("", name), manager.is_branch("", name)))  # type: ignore[misc]


_URIS: Final = st.builds(
    MetadataServiceUri,
    st.lists(
        # Labels are not empty: no host can have such a name.
        st.builds("{}:{}".format, st.from_regex(r"\A[abz-]+(\.[abz-]+)*\Z"), st.integers(1, 65535)),
        min_size=1,
        max_size=3,
    ).map(",".join),
    st.lists(st.text("abz-", min_size=1), min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts)),
    st.none() | st.sampled_from(["flat", "hierarchical", "longhierarchical"]),
)


_WRITTEN_URIS: Final = _URIS.map(str).map(str.encode)


@fuzz(
    100, text=hostile(_WRITTEN_URIS | with_long_number(_WRITTEN_URIS)).map(lambda data: data.decode("utf-8", "replace"))
)
def test_metadata_service_uris(text: str) -> None:
    """A URI that is accepted means the same when it is written."""
    found = outcome(
        lambda: MetadataServiceUri.parse(text), InvalidArgumentError, names="metadataServiceUri", max_text=_OWN_TEXT
    )
    assert isinstance(found, Refused) or MetadataServiceUri.parse(str(found)) == found


@fuzz(40, uri=_URIS, table=st.dictionaries(st.text("ab.", min_size=1), st.text("abc", min_size=1), max_size=4))
def test_settings_in_text_are_read_as_they_were_written(uri: MetadataServiceUri, table: dict[str, str]) -> None:
    assert MetadataServiceUri.parse(str(uri)) == uri
    assert parse_rack_table(",".join(f"{host}=/{rack}" for host, rack in table.items())) == {
        host: f"/{rack}" for host, rack in table.items()
    }


_RACK_NAMES: Final = st.sampled_from([None, "", "/", " ", "r1", "/r1", " /r2 ", "r2", 7, ["r3"]])
_RACK_GROUPS: Final = st.builds(
    lambda racks: {
        name: {"a:1": {"rack": first}, "b:1": {"rack": second}}
        for name, first, second in zip(("g1", "g2", "g3"), racks[:3], racks[3:], strict=True)
    },
    st.lists(_RACK_NAMES | st.sampled_from(["r1", "r2", "r3"]), min_size=6, max_size=6),
)


@fuzz(40, groups=_RACK_GROUPS, wrong=st.sampled_from([None, None, "groups", "group", "info"]), value=_RACK_NAMES)
def test_mappings_of_racks(groups: dict[str, Any], wrong: str | None, value: Any) -> None:
    """The first group by name that gives a bookie a rack counts; what is no object of objects is refused."""
    racks: dict[str, str] = {}
    for name in sorted(groups):
        for bookie, info in groups[name].items():
            rack = info["rack"].strip() if isinstance(info["rack"], str) else ""
            if rack not in ("", "/"):
                racks.setdefault(bookie, "/" + rack.removeprefix("/"))
    if wrong == "group":
        groups["g4"] = value
    elif wrong == "info":
        groups["g0"] = {"a:1": value}
    for order in itertools.permutations(groups.items()):
        data = json.dumps([value] if wrong == "groups" else dict(order)).encode()
        found = outcome(lambda data=data: parse_rack_mapping(data), MetadataFormatError, names="rack")  # type: ignore[misc]
        assert isinstance(found, Refused) if wrong else found == racks


@fuzz(50, text=hostile(st.just(b"b1=/r1,b2=/r2")).map(lambda data: data.decode("utf-8", "replace")))
def test_tables_of_racks(text: str) -> None:
    outcome(lambda: parse_rack_table(text), InvalidArgumentError, names="table of racks", max_text=_OWN_TEXT)
