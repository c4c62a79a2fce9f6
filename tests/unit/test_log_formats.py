"""Head, settings, applications, registrations: bytes, versions, damage."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.schema_history import SchemaHistory
from bk_spark.log.formats.settings import (
    SETTINGS_VERSION,
    EntryFormat,
    LogSettings,
    PasswordCheck,
    decode_settings,
    encode_settings,
)
from bk_spark.log.formats.znodes import (
    HEAD_VERSION,
    MAX_HEAD_BYTES,
    POLICY_VERSION,
    Application,
    Head,
    IndexPosition,
    LedgerRegistration,
    Policy,
    decode_application,
    decode_head,
    decode_policy,
    decode_registration,
    encode_application,
    encode_head,
    encode_policy,
    encode_registration,
)
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError, UnauthorizedError
from bk_spark.protocol.quorum import Quorum

LOG_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"

HEAD = Head(LOG_ID, 1_000, 123_456_789, 2, 17, 1_760_000_000_000, IndexPosition(4_711, 12, 2, 999))
HEAD_HEX = "080112100f1e2d3c4b5a69788796a5b4c3d2e1f018e80720959aef3a28023011388080b3c19c33420a08e724100c180220e707"
RECORDING_HEAD = replace(HEAD, kept_offset=0, last_change_time_ms=1_760_000_000_001)
RECORDING_HEAD_HEX = HEAD_HEX.replace("0801", "0802", 1) + "5000588180b3c19c33"
NEW_HEAD_HEX = "080112100f1e2d3c4b5a69788796a5b4c3d2e1f0"

SETTINGS = LogSettings(
    Quorum(5, 3, 2),
    DigestType.HMAC,
    EntryFormat.ARROW,
    PasswordCheck(bytes(range(16)), 3, bytes(range(100, 132))),
    SchemaHistory('{"type":"struct","fields":[]}'),
)
SETTINGS_HEX = (
    "080112100f1e2d3c4b5a69788796a5b4c3d2e1f018052003280230023802421d7b2274797065223a22737472756374222c22"
    "6669656c6473223a5b5d7d4a360a10000102030405060708090a0b0c0d0e0f10031a206465666768696a6b6c6d6e6f707172"
    "737475767778797a7b7c7d7e7f80818283"
)

SETTINGS_IN_CLUSTER = replace(SETTINGS, instance_id="8f0b")

APPLICATION = Application(
    app="täglich/import",
    query_id="q-1",
    batch_id=41,
    run="r-3",
    commit_time_ms=1_760_000_000_000,
    start_offset=100,
    end_offset=250,
    retired_runs=("r-1", "r-2"),
    in_use=MappingProxyType({900: 17, 12: 0, 1 << 40: 3_000_000}),
    anonymous=True,
    rows=150,
    query_batch_id=7,
)
APPLICATION_HEX = (
    "0801120f74c3a4676c6963682f696d706f72741a03712d3120292a03722d333203722d313203722d323a0a880eef0de8ffff"
    "ffff3f42061100c08db701488080b3c19c33506458fa0160016896017007"
)

REGISTRATION = LedgerRegistration(0, condemned=True)
REGISTRATION_HEX = "080110001801"


FORMATS: list[tuple[str, Any, str, Callable[[Any], bytes], Callable[[bytes, str], Any]]] = [
    ("head", HEAD, HEAD_HEX, encode_head, decode_head),
    ("new head", Head(LOG_ID), NEW_HEAD_HEX, encode_head, decode_head),
    ("settings", (LOG_ID, SETTINGS), SETTINGS_HEX, lambda value: encode_settings(*value), decode_settings),
    (
        "settings in a cluster",
        (LOG_ID, SETTINGS_IN_CLUSTER),
        SETTINGS_HEX + "520438663062",
        lambda value: encode_settings(*value),
        decode_settings,
    ),
    ("application", APPLICATION, APPLICATION_HEX, encode_application, decode_application),
    ("registration", REGISTRATION, REGISTRATION_HEX, encode_registration, decode_registration),
    ("new registration", LedgerRegistration(), "0801", encode_registration, decode_registration),
    ("recording head", RECORDING_HEAD, RECORDING_HEAD_HEX, encode_head, decode_head),
    ("policy", Policy(1000, 2000, 3000, 4000), "080110e80718d00f20b81728a01f", encode_policy, decode_policy),
    ("keeping policy", Policy(1, 2, 3, 4, 5), "080210011802200328043005", encode_policy, decode_policy),
]
IDS = [name for name, *_ in FORMATS]
#: The newest version of formats that have more than one.
NEWEST = {"head": HEAD_VERSION, "policy": POLICY_VERSION, "settings": SETTINGS_VERSION}


@pytest.mark.parametrize(("name", "value", "frozen", "encode", "decode"), FORMATS, ids=IDS)
def test_bytes_are_frozen(
    name: str, value: Any, frozen: str, encode: Callable[[Any], bytes], decode: Callable[[bytes, str], Any]
) -> None:
    assert encode(value).hex() == frozen
    assert decode(bytes.fromhex(frozen), "/z") == value


@pytest.mark.parametrize(("name", "value", "frozen", "encode", "decode"), FORMATS, ids=IDS)
def test_another_version_is_refused_and_named(
    name: str, value: Any, frozen: str, encode: Callable[[Any], bytes], decode: Callable[[bytes, str], Any]
) -> None:
    data = encode(value)
    assert data[:2] in (b"\x08\x01", b"\x08\x02"), "the version comes first"
    newest = next((version for kind, version in NEWEST.items() if kind in name.split()), 1)
    known = f"1 to {newest}" if newest > 1 else "1"
    text = f"/z has format version {newest + 1}; this release knows {known}: use .* later one"
    with pytest.raises(MetadataFormatError, match=text):
        decode(bytes([8, newest + 1]) + data[2:], "/z")
    with pytest.raises(MetadataFormatError, match="format version 0"):
        decode(b"", "/z")


def test_a_head_with_everything_in_it_stays_small() -> None:
    most = (1 << 63) - 1
    data = encode_head(Head(LOG_ID, most, most, most, most, most, IndexPosition(most, most, most, most)))
    assert len(data) < 256 <= MAX_HEAD_BYTES
    with pytest.raises(MetadataFormatError, match="more than 4096"):
        decode_head(data + bytes(MAX_HEAD_BYTES), "/z")


def test_a_head_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(MetadataFormatError, match="damaged"):
        decode_head(encode_head(Head(LOG_ID, 10, 9)), "/z")
    with pytest.raises(MetadataFormatError, match="damaged"):
        decode_head(encode_head(Head(LOG_ID, 0, 0, 2, 1)), "/z")


def test_numbers_of_64_bits_are_refused() -> None:
    """Everywhere else they are signed."""
    with pytest.raises(MetadataFormatError, match="/z is damaged: end_page is 18446744073709551615"):
        decode_head(encode_head(replace(HEAD, index=IndexPosition(1, 2, 2**64 - 1, 4))), "/z")
    with pytest.raises(MetadataFormatError, match="/z is damaged: last_committed_entry is 9223372036854775808"):
        decode_registration(encode_registration(LedgerRegistration(2**63)), "/z")


def test_an_application_with_too_many_runs_or_unequal_columns_is_refused() -> None:
    message = pb.Application(format_version=1, app="a", retired_runs=[str(n) for n in range(33)])
    with pytest.raises(MetadataFormatError, match="damaged"):
        decode_application(message.SerializeToString(), "/z")
    message = pb.Application(format_version=1, app="a", in_use_ledger_deltas=[1, 0], in_use_last_entries=[1, 1])
    with pytest.raises(MetadataFormatError, match="damaged"):
        decode_application(message.SerializeToString(), "/z")


def test_retired_runs_name_their_successors() -> None:
    assert APPLICATION.successor_of("r-1") == "r-2"
    assert APPLICATION.successor_of("r-2") == "r-3"
    assert APPLICATION.successor_of("r-3") is None
    assert APPLICATION.successor_of("r-9") is None


def test_the_password_is_checked_and_not_stored() -> None:
    settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"correct horse")
    data = encode_settings(LOG_ID, settings)
    assert b"correct horse" not in data
    assert "correct horse" not in repr(settings)
    _, stored = decode_settings(data, "/z")
    stored.check_password(b"correct horse", "flights")
    with pytest.raises(UnauthorizedError, match="wrong password for log flights") as caught:
        stored.check_password(b"battery staple", "flights")
    assert "staple" not in str(caught.value)
    with pytest.raises(UnauthorizedError, match="log flights has a password, and none was given: give the one"):
        stored.check_password(b"", "flights")
    open_log = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
    open_log.check_password(b"", "flights")
    with pytest.raises(UnauthorizedError, match="wrong password for log flights: it was made without one, give none"):
        open_log.check_password(b"battery staple", "flights")
    again = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"correct horse")
    assert again.password_check != settings.password_check, "salted"


def test_another_cluster_is_refused_with_what_to_do() -> None:
    SETTINGS.check_cluster("8f0b", "flights")
    SETTINGS.check_cluster(None, "flights")
    SETTINGS_IN_CLUSTER.check_cluster("8f0b", "flights")
    with pytest.raises(InvalidArgumentError, match="are in cluster 8f0b, and .* names cluster 77aa: ") as other:
        SETTINGS_IN_CLUSTER.check_cluster("77aa", "flights")
    assert "bkctl log delete" in str(other.value)
    with pytest.raises(InvalidArgumentError, match="has no id .*INSTANCEID is missing.*: correct metadata") as missing:
        SETTINGS_IN_CLUSTER.check_cluster(None, "flights")
    assert "create it again" in str(missing.value)
    assert "None" not in str(missing.value)


def test_settings_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(SETTINGS)) == SETTINGS


def test_schema_and_entry_format_must_agree() -> None:
    def create(entry_format: EntryFormat, schema_json: str | None) -> LogSettings:
        return LogSettings.create(Quorum(1, 1, 1), DigestType.CRC32C, entry_format, b"", schema_json)

    with pytest.raises(InvalidArgumentError, match="needs a schema"):
        create(EntryFormat.ARROW, None)
    with pytest.raises(InvalidArgumentError, match="has none"):
        create(EntryFormat.RAW, "{}")
    with pytest.raises(InvalidArgumentError, match="not valid JSON"):
        create(EntryFormat.ARROW, "struct<a:int>")
    with pytest.raises(InvalidArgumentError, match="not valid JSON"):
        create(EntryFormat.ARROW, "[" * 100_000)
    with pytest.raises(InvalidArgumentError, match="use fewer columns"):
        create(EntryFormat.ARROW, '"' + "x" * 600_000 + '"')


@pytest.mark.parametrize(
    "changes",
    [{"digest_type": 9}, {"entry_format": 0}, {"ack_quorum_size": 7}, {"log_id": b"short"}, {"schema_json": ""}],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    message = pb.Settings.FromString(encode_settings(LOG_ID, SETTINGS))
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(MetadataFormatError):
        decode_settings(message.SerializeToString(), "/z")
    message = pb.Settings.FromString(encode_settings(LOG_ID, SETTINGS))
    message.password_check.iterations = 0xFFFFFFFF
    with pytest.raises(MetadataFormatError, match="password check"):
        decode_settings(message.SerializeToString(), "/z")
