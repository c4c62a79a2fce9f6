"""Schemas that grow: which types become wider, what is refused, and the versions in settings and pages."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from bk_spark.log.formats.page import decode_page, encode_page
from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.schema_history import MAX_SCHEMA_VERSIONS, SchemaChange, SchemaHistory
from bk_spark.log.formats.schema_merge import (
    CannotWidenError,
    JsonType,
    Names,
    fields_of,
    first_missing,
    json_of,
    merged,
    same_fields,
    schema_json_of,
    type_text,
    wider,
)
from bk_spark.log.formats.settings import EntryFormat, LogSettings, decode_settings, encode_settings
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.quorum import Quorum
from tests.support.fixtures import golden

LOG_ID: Final = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
OLD: Final = golden("log-0.1.0")
ANY: Final = Names()
EXACT: Final = Names(case_sensitive=True)


def struct(**types: JsonType) -> dict[str, Any]:
    fields = [{"name": name, "type": one, "nullable": True, "metadata": {}} for name, one in types.items()]
    return {"type": "struct", "fields": fields}


def columns(**types: JsonType) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = struct(**types)["fields"]
    return fields


def schema(**types: JsonType) -> str:
    return schema_json_of(columns(**types))


def array(element: JsonType) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(key: JsonType, value: JsonType) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


#: Every type that a log can have, of the wider ones only examples.
TYPES: Final = (
    "void", "boolean", "byte", "short", "integer", "long", "float", "double", "decimal(10,2)", "decimal(12,2)",
    "decimal(12,4)", "decimal(38,0)", "string", "binary", "date", "timestamp", "timestamp_ntz", "time(6)",
    "interval day to second", "variant",
)  # fmt: skip
#: What holds the values of two different types. All pairs that are not here are refused.
WIDER: Final = {
    ("byte", "short"): "short",
    ("byte", "integer"): "integer",
    ("byte", "long"): "long",
    ("short", "integer"): "integer",
    ("short", "long"): "long",
    ("integer", "long"): "long",
    ("float", "double"): "double",
    ("decimal(10,2)", "decimal(12,2)"): "decimal(12,2)",
    ("decimal(10,2)", "decimal(12,4)"): "decimal(12,4)",
    ("decimal(12,2)", "decimal(12,4)"): "decimal(14,4)",
    **{("void", other): other for other in TYPES if other != "void"},
}


@pytest.mark.parametrize(("one", "other"), list(itertools.product(TYPES, TYPES)))
def test_every_pair_of_types(one: str, other: str) -> None:
    expected = one if one == other else WIDER.get((one, other)) or WIDER.get((other, one))
    wrapped: list[tuple[JsonType, JsonType, JsonType | None]] = [
        (one, other, expected),
        (array(one), array(other), expected and array(expected)),
        (mapping(one, "string"), mapping(other, "string"), expected and mapping(expected, "string")),
        (mapping("string", one), mapping("string", other), expected and mapping("string", expected)),
        (struct(f=one), struct(f=other), expected and struct(f=expected)),
        (array(struct(f=mapping("string", one))), array(struct(f=mapping("string", other))),
         expected and array(struct(f=mapping("string", expected)))),
    ]  # fmt: skip
    for stored, written, both in wrapped:
        if both is None:
            with pytest.raises(CannotWidenError) as refused:
                wider(stored, written, ANY, "c")
            assert refused.value.path.startswith("c")
        else:
            found = wider(stored, written, ANY, "c")
            assert found == both
            assert (found is stored) == (type_text(both) == type_text(stored)), "what holds both already is not changed"
            assert type_text(wider(written, stored, ANY, "c")) == type_text(both), "whoever is first"


def test_kinds_do_not_mix() -> None:
    kinds: list[JsonType] = ["integer", struct(a="integer"), array("integer"), mapping("string", "integer")]
    for one, other in itertools.permutations(kinds, 2):
        with pytest.raises(CannotWidenError):
            wider(one, other, ANY, "c")
    udt = {"type": "udt", "class": "x.Point", "sqlType": "double"}
    assert wider(udt, dict(udt), ANY, "c") is udt
    with pytest.raises(CannotWidenError):
        wider(udt, "double", ANY, "c")


@pytest.mark.parametrize(
    "wrap", [lambda one: one, array, lambda one: mapping("string", one), lambda one: struct(a=one)]
)
def test_types_of_users_do_not_mix(wrap: Callable[[JsonType], JsonType]) -> None:
    """Their values may be stored alike, or one class may have changed how."""
    point = {"type": "udt", "class": "x.Point", "pyClass": "x.py.Point", "sqlType": array("double")}
    others = ({**point, "class": "x.Vector"}, {**point, "sqlType": array("float")})
    for other in others:
        with pytest.raises(CannotWidenError) as refused:
            wider(wrap(point), wrap(other), ANY, "c")
        assert "udt<x.Point:array<double>>" in f"{refused.value.stored} {refused.value.written}"
    in_python = {"type": "udt", "pyClass": "__main__.Point", "serializedClass": "gAS1", "sqlType": array("double")}
    again = {**in_python, "serializedClass": "gAS2", "sqlType": {**array("double"), "containsNull": False}}
    assert wider(wrap(in_python), wrap(again), ANY, "c") == wrap(in_python), "Python pickles a class anew in each run"
    with pytest.raises(CannotWidenError):
        wider(wrap(in_python), wrap({**in_python, "pyClass": "__main__.Other"}), ANY, "c")


def test_decimals_stop_at_38_digits() -> None:
    assert wider("decimal(30,2)", "decimal(20,10)", ANY, "c") == "decimal(38,10)"
    with pytest.raises(CannotWidenError, match=r"decimal\(39,11\), and 38 digits are the most"):
        wider("decimal(30,2)", "decimal(20,11)", ANY, "c")


def test_columns_are_added_at_the_end_and_may_be_null() -> None:
    new = {"name": "c", "type": {"type": "array", "elementType": "integer", "containsNull": False},
           "nullable": False, "metadata": {"comment": "x"}}  # fmt: skip
    stored = columns(a="integer", b="string")
    found = merged(stored, [new, *columns(b="string", a="long")], ANY)
    assert [one["name"] for one in found] == ["a", "b", "c"]
    assert [type_text(one["type"]) for one in found] == ["bigint", "string", "array<int>"]
    assert found[1] is stored[1]
    assert found[2] == {"name": "c", "type": array("integer"), "nullable": True, "metadata": {"comment": "x"}}


def test_fields_of_structs_are_known_by_name_in_any_order() -> None:
    stored = columns(s=struct(a="integer", b=struct(x="float", y="string")))
    written = columns(s=struct(b=struct(y="string", z="date", x="double"), a="short"))
    found = merged(stored, written, ANY)
    assert type_text(found[0]["type"]) == "struct<a:int,b:struct<x:double,y:string,z:date>>"
    assert same_fields(stored, columns(s=struct(b=struct(y="string", x="float"), a="integer")), ANY)
    assert not same_fields(stored, written, ANY)
    assert merged(stored, columns(s=struct(b=struct(y="string", x="float"), a="integer")), ANY)[0] is stored[0]


def test_names_by_case() -> None:
    stored = columns(Id="integer", s=struct(Lat="float"))
    written = columns(ID="long", s=struct(lat="double"))
    assert [one["name"] for one in merged(stored, written, ANY)] == ["Id", "s"]
    assert [type_text(one["type"]) for one in merged(stored, written, ANY)] == ["bigint", "struct<Lat:double>"]
    assert [one["name"] for one in merged(stored, written, EXACT)] == ["Id", "s", "ID"]
    assert type_text(merged(stored, written, EXACT)[1]["type"]) == "struct<Lat:float,lat:double>"
    both = columns(id="string", Id="integer")
    assert merged(both, columns(Id="long"), ANY)[0]["type"] == "string", "the same spelling goes first"


def test_two_columns_of_one_name_are_refused() -> None:
    for names, written, text in (
        (ANY, columns(a="integer", A="integer"), "a and A: rename .*caseSensitive"),
        (EXACT, [*columns(a="integer"), *columns(a="integer")], "two columns named a: rename"),
        (ANY, columns(x=array(struct(b="integer", B="integer"))), r"x\.element\.b and x\.element\.B"),
        (ANY, columns(s=struct(b="integer", B="integer")), r"s\.b and s\.B"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            merged(columns(s=struct(b="integer"), x=array(struct(b="integer"))), written, names)
    with pytest.raises(InvalidArgumentError, match="a and A"):
        SchemaHistory(schema(a="integer")).version_of(schema(a="integer", A="integer"), ANY)
    assert len(merged([], columns(a="integer", A="integer"), EXACT)) == 2


def test_the_first_missing_column_or_field_is_named() -> None:
    stored = columns(a="integer", s=struct(x="integer", y=array(struct(z="date"))))
    assert first_missing(stored, columns(A="long", s=struct(y=array(struct(z="date")), x="byte")), ANY) is None
    assert first_missing(stored, columns(s=struct(x="integer")), ANY) == ("a", "integer")
    assert first_missing(stored, columns(a="integer", s=struct(x="integer", y=array(struct(q="date")))), ANY) == (
        "s.y.element.z",
        "date",
    )


def test_a_log_whose_names_differ_only_by_case_is_compared_exactly() -> None:
    """Otherwise one column of the data would be written to both."""
    history = SchemaHistory(schema(id="integer", ID="string"))
    assert history.version_of(schema(ID="string", id="integer"), ANY) == 0
    assert history.version_of(schema(id="integer"), ANY) is None
    for written in (schema(id="integer"), schema(Id="integer", ID="string")):
        with pytest.raises(InvalidArgumentError, match="column (ID|id) of log x is missing"):
            history.grown(written, 1, ANY, "x")
    assert ANY.for_fields(columns(s=array(mapping("string", struct(a="date", A="date"))))) == EXACT
    assert ANY.for_fields(columns(a="date", s=struct(A="date"))) == ANY


# --- versions ---


HISTORY: Final = SchemaHistory(schema(id="integer", name="string"))


def grown(history: SchemaHistory, time_ms: int = 7, **types: JsonType) -> SchemaHistory:
    return history.grown(schema(**types), time_ms, ANY, "flights")


def test_a_version_is_added_only_if_the_last_does_not_hold_the_rows() -> None:
    assert grown(HISTORY, name="string", id="short") is HISTORY
    wide = grown(HISTORY, id="long", name="string", at="date")
    assert (wide.version, HISTORY.version) == (1, 0)
    assert type_text(json.loads(wide.current_json)) == "struct<id:bigint,name:string,at:date>"
    assert wide.at(0) == HISTORY.first_json
    assert grown(wide, id="integer", name="string") is wide, "columns that were added later may be missing"
    assert [(one.number, one.time_ms) for one in wide.versions()] == [(0, None), (1, 7)]
    assert wide.versions()[1].schema_json == wide.current_json
    assert len(wide.changes[0].columns) == 2, "only what changes is stored"


def test_two_writers_that_merge_at_once_both_end_right() -> None:
    """Whoever is second merges into what the first has made."""
    mine, theirs = {"id": "long", "name": "string", "x": "date"}, {"id": "integer", "name": "string", "y": "float"}
    for first, second in ((mine, theirs), (theirs, mine)):
        both = grown(grown(HISTORY, **first), **second)
        assert both.version == 2
        assert {one["name"]: one["type"] for one in fields_of(both.current_json)} == {**theirs, **mine, "id": "long"}


def test_the_version_of_columns_is_the_latest_that_has_exactly_them() -> None:
    wide = grown(HISTORY, id="long", name="string")
    wider_still = grown(wide, id="long", name="string", s=struct(a="date", b="date"))
    assert wider_still.version_of(schema(name="string", id="integer"), ANY) == 0
    assert wider_still.version_of(schema(name="string", id="long"), ANY) == 1
    assert wider_still.version_of(schema(S=struct(b="date", a="date"), name="string", id="long"), ANY) == 2
    assert wider_still.version_of(schema(S=struct(b="date", a="date"), name="string", id="long"), EXACT) is None
    assert wider_still.version_of(schema(id="short", name="string"), ANY) is None
    assert wider_still.version_of(schema(id="integer"), ANY) is None


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (
            columns(id="string", name="string"),
            "column id is string here and int in log flights, and no type holds both",
        ),
        (columns(id="integer"), r"column name of log flights is missing .*CAST\(NULL AS string\)"),
        (columns(id="integer", title="string"), "column name of log flights is missing .*old name"),
    ],
)
def test_what_would_lose_data_is_refused(written: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        HISTORY.grown(schema_json_of(written), 7, ANY, "flights")


def test_wide_schemas_of_many_versions_are_compared_soon() -> None:
    """A job that does not know what others added took half a second for each version of 2,000 columns."""
    first = schema(**{f"column_{number}": "long" for number in range(2_000)})
    added = [
        SchemaChange(number, ((2_000 + number, json_of(columns(**{f"new_{number}": "long"})[0])),))
        for number in range(300)
    ]
    history = SchemaHistory(first, tuple(added))
    began = time.process_time()
    assert history.version_of(first, ANY) == 0
    assert history.version_of(history.at(299), ANY) == 299
    assert len(merged(fields_of(first), fields_of(history.current_json), ANY)) == 2_300
    assert first_missing(fields_of(first), fields_of(history.current_json), ANY) is None
    assert time.process_time() - began < 2


def test_versions_are_bounded() -> None:
    history = HISTORY
    for number in range(MAX_SCHEMA_VERSIONS - 1):
        history = grown(history, id="integer", name="string", **{f"c{number}": "date"})
    assert len(history.versions()) == MAX_SCHEMA_VERSIONS
    with pytest.raises(InvalidArgumentError, match="has 1000 versions, which is the most"):
        grown(history, id="integer", name="string", one_more="date")
    settings = settings_of(history)
    assert decode_settings(encode_settings(LOG_ID, settings), "/z") == (LOG_ID, settings)
    with pytest.raises(InvalidArgumentError, match="take more than 524288 bytes"):
        settings_of(HISTORY).grown(schema(id="integer", name="string", **{"x" * 600_000: "date"}), 1, ANY, "flights")


def test_a_schema_that_nests_too_deeply_is_refused() -> None:
    deep: JsonType = "integer"
    for _ in range(3000):
        deep = array(deep)
    with pytest.raises((InvalidArgumentError, MetadataFormatError, RecursionError)):
        grown(HISTORY, id="integer", name="string", deep=deep)


@pytest.mark.parametrize(
    "text",
    ["", "7", '"integer"', "[]", "{}", '{"type":"struct"}', '{"type":"struct","fields":[{"name":"a"}]}',
     '{"type":"struct","fields":[{"name":7,"type":"integer"}]}', '{"type":"struct","fields":[{"name":"a","type":7}]}',
     '{"type":"struct","fields":7}', '{"type":"array","elementType":"integer"}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(MetadataFormatError, match="not a schema in Spark's JSON form"):
        fields_of(text)


# --- bytes ---


def settings_of(history: SchemaHistory) -> LogSettings:
    old = decode_settings(bytes.fromhex(OLD["settings"]), "/z")[1]
    return LogSettings(old.quorum, old.digest_type, old.entry_format, old.password_check, history, old.instance_id)


GROWN: Final = settings_of(grown(HISTORY, id="long", name="string", at="date"))
#: Version 2 of the format; the last field has version 1 of the schema.
GROWN_TAIL_HEX: Final = (
    "520438663062" "5a7c" "0807" "12020002"
    + "1a39" + json_of(columns(id="long")[0]).encode().hex()
    + "1a39" + json_of(columns(at="date")[0]).encode().hex()
)  # fmt: skip


def test_bytes_of_settings_that_grew_are_frozen() -> None:
    data = encode_settings(LOG_ID, GROWN)
    assert data[:2] == b"\x08\x02"
    assert data.hex().endswith(GROWN_TAIL_HEX)
    assert decode_settings(data, "/z") == (LOG_ID, GROWN)
    assert pickle.loads(pickle.dumps(GROWN)) == GROWN
    assert (GROWN.schema_version, len(GROWN.schema_versions())) == (1, 2)


def test_what_0_1_0_wrote_is_version_0_and_is_written_as_it_was() -> None:
    data = bytes.fromhex(OLD["settings"])
    log_id, settings = decode_settings(data, "/z")
    assert (settings.schema_version, settings.schema_json) == (0, OLD["schema_json"])
    assert encode_settings(log_id, settings) == data
    page = decode_page(bytes.fromhex(OLD["page"]), "/p", log_id=log_id, number=OLD["page_number"])
    assert [list(column) for column in zip(*(one.tolist() for one in page.table.columns[:7]), strict=True)] == [
        [ledger, first, last - first + 1, base, rows, size, time_ms]
        for ledger, first, last, base, rows, size, time_ms in OLD["segments"]
    ]
    assert page.table.schema_version.tolist() == [0, 0, 0, 0]
    assert encode_page(page).hex() == OLD["page"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda message: setattr(message, "format_version", 1),
        lambda message: message.ClearField("schema_changes"),
        lambda message: message.ClearField("schema_json"),
        lambda message: message.schema_changes[0].positions.append(2),
        lambda message: message.schema_changes[0].positions.__setitem__(1, 3),
        lambda message: message.schema_changes[0].positions.__setitem__(0, 1),
        lambda message: message.schema_changes[0].columns.__setitem__(0, "{"),
        lambda message: message.schema_changes[0].columns.__setitem__(0, json_of(columns(other="long")[0])),
        lambda message: message.schema_changes[0].columns.__setitem__(0, '{"name":"id","type":"long"},{}'),
        lambda message: setattr(message.schema_changes[0], "time_ms", 1 << 63),
        lambda message: message.schema_changes.extend([message.schema_changes[0]] * MAX_SCHEMA_VERSIONS),
    ],
)
def test_damaged_versions_are_refused(damage: Any) -> None:
    message = pb.Settings.FromString(encode_settings(LOG_ID, GROWN))
    damage(message)
    with pytest.raises(MetadataFormatError, match="settings of a log /z are damaged"):
        decode_settings(message.SerializeToString(), "/z")


def test_a_version_that_is_not_there_is_refused() -> None:
    with pytest.raises(MetadataFormatError, match="versions 0 to 0, but no version 1"):
        HISTORY.at(1)
    with pytest.raises(MetadataFormatError, match="at place 5 of 2"):
        SchemaHistory(HISTORY.first_json, (SchemaChange(1, ((5, json_of(columns(a="date")[0])),)),)).versions()


def test_a_raw_log_has_no_schema_to_grow() -> None:
    raw = LogSettings.create(Quorum(1, 1, 1), DigestType.CRC32C, EntryFormat.RAW, b"")
    assert (raw.schema_version, raw.schema_json, raw.schema_versions()) == (0, None, [])
    with pytest.raises(InvalidArgumentError, match="entryFormat raw, and only .* leave the option mergeSchema .* out"):
        raw.grown(schema(a="date"), 1, ANY, "flights")
