"""The table of options: what it takes, and what it says of what it does not take."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from bk_spark.datasource.options.foreign import OURS
from bk_spark.datasource.options.options import OPTIONS, Group, Option, SourceOptions, Use
from bk_spark.datasource.options.page import reference
from bk_spark.datasource.options.parse import parse_options
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.log.positions.texts import Edge, Time
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.quorum import Quorum

URI = "zk://127.0.0.1:2181/ledgers"
SECRET = "correct horse"


def _read(**options: str) -> SourceOptions:
    return parse_options({"metadataServiceUri": URI, "log": "events", **options}, writing=False)


def _write(**options: str) -> SourceOptions:
    return parse_options({"metadataServiceUri": URI, "log": "events", **options}, writing=True)


def _refused(*, writing: bool, **options: str) -> str:
    with pytest.raises(InvalidArgumentError) as raised:
        parse_options(options, writing=writing)
    return str(raised.value)


def _refused_read(**options: str) -> str:
    return _refused(writing=False, metadataServiceUri=URI, log="events", **options)


def _refused_write(**options: str) -> str:
    return _refused(writing=True, metadataServiceUri=URI, log="events", **options)


def test_the_table_is_sound() -> None:
    names = [option.name.lower() for option in OPTIONS.values()]
    assert len(set(names)) == len(names)
    for option in OPTIONS.values():
        assert option.uses, option.name
        assert option.doc.endswith("."), option.name


@pytest.mark.parametrize("option", [o for o in OPTIONS.values() if o.default is not None], ids=lambda o: str(o.name))
def test_a_default_is_one_that_its_own_parser_takes(option: Option) -> None:
    assert option.default is not None
    option.parse(option.default)


def test_the_reference_is_what_the_table_says() -> None:
    page = Path(__file__).parents[2] / "docs" / "options.md"
    assert page.read_text() == reference(), "run python -m bk_spark.datasource.options.page > docs/options.md"
    for option in OPTIONS.values():
        assert reference().count(f"| `{option.name}` |") == 1


def test_defaults_of_a_read() -> None:
    options = _read()
    assert (options.log, options.ledger_id, options.entry_format) == ("events", None, None)
    assert (options.include_metadata, options.min_partitions, options.split_bytes) == (False, 1, 32 << 20)
    assert options.log_root == "/bk_spark/logs"
    assert options.password() == b""
    assert options.given == {"metadataserviceuri", "log"}


def test_defaults_of_a_write() -> None:
    options = _write()
    assert options.quorum == Quorum(3, 3, 2)
    assert options.digest_type is DigestType.CRC32C
    assert (options.compression, options.entry_bytes) == ("lz4", 1 << 20)
    assert (options.txn_app_id, options.txn_version) == (None, None)
    assert (options.ledger_roll_bytes, options.ledger_roll_interval_ms) == (1 << 30, 3_600_000)
    assert not options.fence_tail


def test_names_and_choices_are_taken_in_any_case() -> None:
    # Spark hands option names over in lower case.
    options = parse_options(
        {
            "METADATASERVICEURI": URI,
            "log": "events",
            "entryformat": "Arrow",
            "compression": "ZSTD",
            "digesttype": "hmac",
        },
        writing=True,
    )
    assert options.entry_format is EntryFormat.ARROW
    assert (options.compression, options.digest_type) == ("zstd", DigestType.HMAC)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4096", 4096), ("64k", 64 << 10), ("64KB", 64 << 10), ("2m", 2 << 20), ("1 g", 1 << 30), (" 8Mb ", 8 << 20)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert _read(splitBytes=text).split_bytes == size_bytes


@pytest.mark.parametrize("digest", DigestType)
def test_every_digest_can_be_asked_for(digest: DigestType) -> None:
    assert _write(digestType=digest.name).digest_type is digest


def test_what_spark_adds_is_passed_over() -> None:
    assert _write(checkpointLocation="/x", queryName="q").given == {"metadataserviceuri", "log"}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("ensembelSize", "ensembleSize"),
        ("ackquorum", "ackQuorumSize"),
        ("metadataServiceURL", "metadataServiceUri"),
        ("ledger", "ledgerId"),
        ("splitSize", "splitBytes"),
        ("passwd", "password"),
        ("format", "entryFormat"),
    ],
)
def test_an_unknown_option_names_the_nearest(wrong: str, right: str) -> None:
    text = _refused_write(**{wrong: "1"})
    assert wrong in text
    assert f"did you mean {right}?" in text


def test_an_option_like_no_other_gets_the_whole_list() -> None:
    text = _refused_read(zzzzz="1")
    for option in OPTIONS.values():
        assert option.name in text


@pytest.mark.parametrize("key", ["path", "paths"])
def test_a_path_is_refused_with_what_to_do(key: str) -> None:
    text = _refused_read(**{key: "/x"})
    assert "take no path" in text
    assert '.option("log"' in text


_KINDS = {
    Use.BATCH_READ: (False, False),
    Use.STREAM_READ: (False, True),
    Use.BATCH_WRITE: (True, False),
    Use.STREAM_WRITE: (True, True),
}
_OFTEN = {
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "startingOffsetsByTimestamp": '{"events": 1}',
    "endingOffsetsByTimestamp": '{"events": 1}',
    "startingOffsetsByTimestampStrategy": "latest",
    "asOf": "7",
    "entryFormat": "arrow",
    "transport": "grpc",
}


def _given(option: Option) -> dict[str, str]:
    """Options of a read or write that has ``option``."""
    value = option.default or _OFTEN.get(option.name, "3")
    given = {"metadataServiceUri": URI, option.name: value}
    if option.group is Group.PULSAR:
        given["pulsarTopic"] = "orders"
        given.setdefault("pulsarValues", "schema")
    elif option.name not in ("logs", "logPattern", "ledgerId", "ledgerIds") and not option.name.startswith("pulsar"):
        given["log"] = "events"
    if option.name == "maxTriggerDelay":
        given["minEntriesPerTrigger"] = "1"
    if option.name in ("logColumn", "maxLogs"):
        del given["log"]
        given["logColumn"] = "log"
    if option.name == "startingOffsetsByTimestampStrategy":
        given["startingTimestamp"] = "1"
    return given


@pytest.mark.parametrize("use", _KINDS, ids=lambda use: str(use.name))
@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda o: str(o.name))
def test_options_are_taken_where_they_are_of_use(option: Option, use: Use) -> None:
    writing, streaming = _KINDS[use]
    given = _given(option)
    if use is Use.BATCH_WRITE and option.name.startswith("txn"):
        given = {**given, "txnAppId": "app", "txnVersion": "1"}
    if use in option.uses:
        assert option.name.lower() in parse_options(given, writing=writing, streaming=streaming).given
        return
    with pytest.raises(InvalidArgumentError) as raised:
        parse_options(given, writing=writing, streaming=streaming)
    here = ("streaming " if streaming else "") + ("write" if writing else "read")
    assert re.fullmatch(
        rf"option {option.name} is for (reading|writing|(batch|streaming) (reads|writes)) only: leave it out of this "
        rf"{here}",
        str(raised.value),
    )


@pytest.mark.parametrize("option", [o for o in OPTIONS.values() if o.uses & Use.READ], ids=lambda o: str(o.name))
def test_before_it_is_known_whether_a_read_streams_options_of_both_pass(option: Option) -> None:
    parse_options(_given(option), writing=False, streaming=None)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("ensembleSize", "three", "must be a whole number from 1 to 64"),
        ("ensembleSize", "0", "must be a whole number from 1 to 64"),
        ("txnVersion", "-1", "must be a whole number from 0 to 2⁶³ - 1"),
        ("entryBytes", "1q", "must be a number of bytes, or one with k, m or g"),
        ("entryBytes", "10", "must be from 1024 to 67108864 bytes"),
        ("digestType", "CRC", "must be one of CRC32C, CRC32, HMAC, DUMMY; did you mean CRC32"),
        ("compression", "gzip", "must be one of none, lz4, zstd"),
        ("entryFormat", "arow", "did you mean arrow?"),
        ("log", "", "is empty"),
        ("passwordFile", "", "is empty"),
        ("ledgerRollInterval", "60", "must be a number with a unit: ms, s, m, h or d"),
        ("ledgerRollInterval", "0s", "must be from 1 to 31536000000 ms"),
        ("ledgerRollInterval", "-1h", "must be a number with a unit"),
    ],
)
def test_a_wrong_value_names_option_value_and_remedy(name: str, value: str, remedy: str) -> None:
    text = _refused(writing=True, **{"metadataServiceUri": URI, "log": "events", name: value})
    assert text.startswith(f"option {name}: {value!r} ")
    assert remedy in text


@pytest.mark.parametrize("value", ["yes", "1", ""])
def test_a_boolean_is_true_or_false(value: str) -> None:
    assert "option includeMetadata" in _refused_read(includeMetadata=value)
    assert _read(includeMetadata="TRUE").include_metadata


def test_the_cluster_must_be_named() -> None:
    text = _refused(writing=False, log="events")
    assert "option metadataServiceUri is missing" in text
    assert ".option(" in text


def test_a_write_needs_a_log() -> None:
    assert "option log is missing" in _refused(writing=True, metadataServiceUri=URI)


def test_options_that_a_table_lost() -> None:
    for writing in (True, False):
        text = _refused(writing=writing)
        assert text.startswith("option metadataServiceUri is missing")
        assert "SELECT … FROM t WITH (metadataServiceUri = " in text
        assert "CREATE TEMPORARY VIEW v USING bookkeeper OPTIONS (" in text
    assert "TABLE" not in _refused(writing=False, log="events")


def test_making_a_table() -> None:
    # What Spark hands over for CREATE TABLE t USING bookkeeper OPTIONS (log 'a').
    text = _refused(writing=False, **{"option.log": "a", "provider": "bookkeeper", "owner": "root", "log": "a"})
    assert text.startswith("CREATE TABLE … USING bookkeeper makes a table only with its columns and without options")
    assert "CREATE TEMPORARY VIEW" in text


def test_a_read_is_of_one_log_or_one_ledger() -> None:
    assert "log, logs, logPattern, ledgerId, ledgerIds" in _refused(writing=False, metadataServiceUri=URI)
    assert "none of them is given" in _refused(writing=False, metadataServiceUri=URI)
    assert "log and ledgerId are given" in _refused_read(ledgerId="7")
    assert "log and logs and logPattern are given" in _refused_read(logs="a,b", logPattern="a.*")
    ledger = parse_options({"metadataServiceUri": URI, "ledgerId": "7"}, writing=False)
    assert (ledger.ledger_id, ledger.ledgers) == (7, (7,))
    ledgers = parse_options({"metadataServiceUri": URI, "ledgerIds": "7, 9"}, writing=False)
    assert (ledgers.ledger_ids, ledgers.ledgers) == ((7, 9), (7, 9))
    assert _read().ledgers is None


@pytest.mark.parametrize("name", ["txnAppId", "txnVersion"])
def test_transaction_options_go_together(name: str) -> None:
    assert "txnAppId and txnVersion go together" in _refused_write(**{name: "1"})


def test_a_stream_has_its_txn_version_from_spark() -> None:
    options = parse_options({"metadataServiceUri": URI, "log": "x", "txnAppId": "a"}, writing=True, streaming=True)
    assert (options.txn_app_id, options.txn_version) == ("a", None)


class TestRanges:
    @pytest.mark.parametrize(
        ("text", "positions"),
        [
            ("earliest", Edge.EARLIEST),
            (" Latest ", Edge.LATEST),
            ('{"events": 7}', {"events": 7}),
            ('{"a": 0, "b": -2, "c": -1}', {"a": 0, "b": Edge.EARLIEST, "c": Edge.LATEST}),
        ],
    )
    def test_positions(self, text: str, positions: object) -> None:
        options = parse_options(
            {"metadataServiceUri": URI, "log": "x", "startingOffsets": text}, writing=False, streaming=True
        )
        assert options.starting_offsets == positions
        assert pickle.loads(pickle.dumps(options)) == options

    @pytest.mark.parametrize(
        ("text", "wrong"),
        [
            ("first", 'must be earliest, latest or JSON such as {"name of the log": 100}'),
            ("{}", "must be earliest, latest or JSON"),
            ("7", "must be earliest, latest or JSON"),
            ("[" * 100_000, "must be earliest, latest or JSON"),
            ('{"a": 1.0}', "must give a an offset of 0 or more, -2 for the first offset, or -1 for the end"),
            ('{"a": true}', "must give a an offset"),
            ('{"a": {"0": 23}}', "must give a an offset"),
            ('{"a": -3}', "must give a an offset"),
            ('{"a": 9223372036854775808}', "must give a an offset"),
            ('{"a": 1, "b": 2, "a": 3}', "names a twice"),
        ],
        ids=lambda text: str(text)[:20],
    )
    def test_what_is_no_position(self, text: str, wrong: str) -> None:
        assert wrong in _refused_read(startingOffsets=text)

    @pytest.mark.parametrize("value", ["latest", '{"events": -1}'])
    def test_a_batch_does_not_start_at_the_end(self, value: str) -> None:
        assert _refused_read(startingOffsets=value) == (
            "option startingOffsets: latest makes a batch read nothing; give earliest, or offsets"
        )

    @pytest.mark.parametrize("value", ["earliest", '{"events": -2}'])
    def test_nor_end_at_the_start(self, value: str) -> None:
        assert "option endingOffsets: earliest makes a batch read nothing" in _refused_read(endingOffsets=value)

    @pytest.mark.parametrize("name", ["starting", "ending"])
    def test_offsets_or_a_timestamp(self, name: str) -> None:
        text = _refused_read(**{f"{name}Offsets": '{"events": 5}', f"{name}Timestamp": "1"})
        assert text == f"give one of the options {name}Offsets and {name}Timestamp, not both"

    @pytest.mark.parametrize("name", ["starting", "ending"])
    def test_one_time_or_one_for_each_log(self, name: str) -> None:
        text = _refused_read(**{f"{name}OffsetsByTimestamp": '{"events": 5}', f"{name}Timestamp": "1"})
        assert text == f"give one of the options {name}Timestamp and {name}OffsetsByTimestamp, not both"
        text = _refused_read(**{f"{name}OffsetsByTimestamp": '{"events": 5}', f"{name}Offsets": '{"events": 5}'})
        assert text == f"give one of the options {name}Offsets and {name}OffsetsByTimestamp, not both"

    def test_a_strategy_needs_a_time(self) -> None:
        text = _refused_read(startingOffsetsByTimestampStrategy="error", startingOffsets="earliest")
        assert text.endswith("give startingTimestamp or startingOffsetsByTimestamp too")

    @pytest.mark.parametrize("name", ["starting", "ending"])
    @pytest.mark.parametrize(("kind", "value"), [("Timestamp", "1"), ("OffsetsByTimestamp", '{"5": 1}')])
    def test_ledgers_know_no_time(self, name: str, kind: str, value: str) -> None:
        given = {"metadataServiceUri": URI, "ledgerId": "5", f"{name}{kind}": value}
        assert f"use {name}Offsets with entry ids" in _refused(writing=False, **given)

    def test_ledgers_have_no_commits(self) -> None:
        text = _refused(writing=False, metadataServiceUri=URI, ledgerId="5", asOf="7")
        assert text.startswith("option asOf is for logs, which have commits; ledgerId names ledgers")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"logs": "a,,b"}, "must be names separated by commas, none of them empty"),
        ({"logs": "a,b,a"}, "names a twice"),
        ({"logPattern": "a("}, "is not a regular expression of Python"),
        ({"ledgerIds": "1,x"}, "must be ledger ids separated by commas"),
        ({"ledgerIds": "1,-1"}, "each must be a whole number from 0 to 2⁶³ - 1"),
        ({"ledgerIds": "1,1_0"}, "must be ledger ids separated by commas"),
        ({"ledgerIds": "1,2,1"}, "names 1 twice"),
        (
            {"startingTimestamp": "yesterday"},
            "must be milliseconds since 1970 (UTC), or a time such as",
        ),
        ({"startingTimestamp": "1969-12-31T23:59:59Z"}, "is before 1970"),
        ({"startingTimestamp": "2026-13-01"}, "must be milliseconds since 1970 (UTC), or a time such as"),
        ({"startingOffsetsByTimestamp": "1000"}, "must be JSON such as"),
        ({"startingOffsetsByTimestamp": '{"events": 1'}, "must be JSON such as"),
        ({"startingOffsetsByTimestamp": "{}"}, "must be JSON such as"),
        ({"startingOffsetsByTimestamp": '{"events": -1}'}, "must give events milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"events": {"0": 1000}}'}, "must give events milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"events": "soon"}'}, "must be milliseconds since 1970"),
        ({"endingOffsetsByTimestamp": '{"events": 1, "events": 2}'}, "names events twice"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "must be one of error, latest"),
        ({"asOf": "yesterday"}, "must be an offset such as 100, a time such as"),
        ({"asOf": '{"events": 1'}, "must be JSON such as"),
        ({"asOf": '{"events": 1.5}'}, "must give events an offset"),
        ({"maxRecordsPerPartition": "0"}, "must be a whole number from 1 to"),
    ],
    ids=str,
)
def test_wrong_values_of_a_read(options: dict[str, str], wrong: str) -> None:
    (name,) = options
    text = _refused_read(**options)
    assert text.startswith(f"option {name}: {options[name]!r} ")
    assert wrong in text


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("250ms", 250), ("10s", 10_000), ("15m", 900_000), ("2 Min", 120_000), ("7d", 604_800_000)],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert _write(ledgerRollInterval=text).ledger_roll_interval_ms == duration_ms


class TestPace:
    def _refused(self, **options: str) -> str:
        with pytest.raises(InvalidArgumentError) as raised:
            parse_options({"metadataServiceUri": URI, "log": "x", **options}, writing=False, streaming=True)
        return str(raised.value)

    def test_a_delay_is_for_a_minimum(self) -> None:
        text = self._refused(maxTriggerDelay="1m")
        assert text == "option maxTriggerDelay is the longest wait for minEntriesPerTrigger: give both"

    def test_the_minimum_is_not_above_the_maximum(self) -> None:
        text = self._refused(minEntriesPerTrigger="11", maxEntriesPerTrigger="10")
        assert text == "minEntriesPerTrigger, 11, is more than maxEntriesPerTrigger, 10"

    def test_defaults(self) -> None:
        options = parse_options({"metadataServiceUri": URI, "log": "x"}, writing=False, streaming=True)
        limits = (options.max_entries_per_trigger, options.max_bytes_per_trigger, options.min_entries_per_trigger)
        assert limits == (None, None, None)
        assert options.max_trigger_delay_ms == 15 * 60_000
        assert options.starting_offsets is None
        assert options.fail_on_data_loss


class TestPassword:
    def test_given_as_text(self) -> None:
        assert _read(password=SECRET).password() == SECRET.encode()
        assert _read(password="pässwörd").password() == "pässwörd".encode()
        assert _read(password="").password() == b""

    @pytest.mark.parametrize("end", ["", "\n", "\r\n"])
    def test_given_in_a_file(self, tmp_path: Path, end: str) -> None:
        path = tmp_path / "password"
        path.write_bytes((SECRET + end).encode())
        assert _read(passwordFile=str(path)).password() == SECRET.encode()

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        options = _read(passwordFile=str(tmp_path / "missing"))
        with pytest.raises(InvalidArgumentError, match=r"option passwordFile: .*missing cannot be read"):
            options.password()

    def test_not_both(self, tmp_path: Path) -> None:
        text = _refused_read(password=SECRET, passwordFile=str(tmp_path))
        assert "password and passwordFile" in text
        assert SECRET not in text

    def test_in_no_text(self) -> None:
        options = _read(password=SECRET)
        assert SECRET not in repr(options)
        assert SECRET not in str(options)
        # Whatever else is wrong, and even where the option itself is.
        for more in ({"nonsense": "1"}, {"minPartitions": "x"}, {"pasword": SECRET}, {"ledgerId": "1"}):
            assert SECRET not in _refused_read(password=SECRET, **more)


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1767225600123", 1767225600123),
        ("2026-01-01T00:00:00.123Z", 1767225600123),
        ("2026-01-01 00:00:00.123", 1767225600123),
        ("2026-01-01T02:00:00.123+02:00", 1767225600123),
        ("2025-12-31T19:00:00.123-0500", 1767225600123),
        ("2026-01-01T05:30:00.123+05:30", 1767225600123),
        ("2026-W01-4", 1767225600000),
        ("2026-01-01T00:00:00.122001Z", 1767225600123),
        ("2026-01-01", 1767225600000),
        ("1970-01-01", 0),
    ],
)
def test_timestamps_are_taken_as_iso_8601_too(name: str, text: str, time_ms: int) -> None:
    options = _read(**{name: text})
    found = options.starting_timestamp if name.startswith("starting") else options.ending_timestamp
    assert found == Time(time_ms)


@pytest.mark.parametrize(
    ("sizes", "remedy"),
    [
        ("3 4 -", ": lower writeQuorumSize or raise ensembleSize"),
        ("3 4 2", ": lower writeQuorumSize or raise ensembleSize"),
        ("3 2 3", ": lower ackQuorumSize or raise writeQuorumSize"),
        ("3 2 4", ": lower ackQuorumSize or raise ensembleSize; lower ackQuorumSize or raise writeQuorumSize"),
        ("2 - 3", ": lower ackQuorumSize or raise ensembleSize"),
        ("- 4 -", ": set ensembleSize too, not given here"),
        ("2 - -", ": set writeQuorumSize too, not given here"),
        ("1 - -", ": set writeQuorumSize and ackQuorumSize too, not given here"),
        ("- 1 -", ": set ackQuorumSize too, not given here"),
        ("- - 4", ": set ensembleSize and writeQuorumSize too, not given here"),
    ],
)
def test_a_wrong_quorum_names_what_is_to_be_changed(sizes: str, remedy: str) -> None:
    names = ("ensembleSize", "writeQuorumSize", "ackQuorumSize")
    given = {name: size for name, size in zip(names, sizes.split(), strict=True) if size != "-"}
    text = _refused_write(**given)
    assert text.startswith("quorum sizes must satisfy ensembleSize >= writeQuorumSize >= ackQuorumSize >= 1, got ")
    assert text.endswith(remedy)


@pytest.mark.parametrize(
    ("theirs", "hint"),
    [
        ("topic", "use log, or pulsarTopic for a topic of Pulsar here"),
        ("subscribe", "use log, or logs for several here"),
        ("subscribePattern", "use logPattern here"),
        ("maxOffsetsPerTrigger", "use maxEntriesPerTrigger here"),
        ("kafka.bootstrap.servers", "use metadataServiceUri, with ZooKeeper's address here"),
        ("assign", "leave it out, a log has no partitions to choose from"),
        ("kafka.security.protocol", "it is for Kafka, leave it out. Here metadataServiceUri says where the cluster is"),
        ("service.url", "use metadataServiceUri, with ZooKeeper's address here"),
    ],
)
@pytest.mark.parametrize("writing", [False, True])
def test_options_of_kafka_name_their_counterpart(theirs: str, hint: str, writing: bool) -> None:
    given = {"metadataServiceUri": URI, "log": "events", theirs: "x"}
    text = _refused(writing=writing, **given)
    assert text.startswith(f"unknown option {theirs!r}: {hint}")
    assert "docs/kafka-migration.md" in text


def test_what_kafkas_options_are_told_to_be_exists() -> None:
    names = {option.name for option in OPTIONS.values()}
    told = {re.split(r"[ ,]", ours)[0] for ours in OURS.values()}
    assert told <= names


@pytest.mark.parametrize("name", ["orphanRetention", "deleteGrace"])
def test_how_long_ledgers_are_kept_is_no_option_of_a_write(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is the log's, not a write's: set it with bkctl log retention"):
        _write(**{name: "0s"})


class TestSeveralLogs:
    def test_a_log_or_a_column(self) -> None:
        text = _refused(writing=True, metadataServiceUri=URI, log="events", logColumn="log")
        assert text == "give one of the options log and logColumn, not both"
        assert "or by logColumn a column that names" in _refused(writing=True, metadataServiceUri=URI)

    def test_their_number_is_for_a_column(self) -> None:
        assert "give logColumn too" in _refused(writing=True, metadataServiceUri=URI, log="events", maxLogs="5")

    def test_their_columns_do_not_grow(self) -> None:
        text = _refused(writing=True, metadataServiceUri=URI, logColumn="log", mergeSchema="true")
        assert text.startswith("option mergeSchema changes the columns of one log")
