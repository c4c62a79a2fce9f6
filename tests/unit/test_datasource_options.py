"""The table of options: what it takes, and what it says of what it does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_spark.datasource.options import OPTIONS, Option, SourceOptions, parse_options
from bk_spark.log.settings import EntryFormat
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
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
    for option in OPTIONS:
        assert option.read or option.write, option.name
        assert option.doc.endswith("."), option.name


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.default is not None], ids=lambda o: str(o.name))
def test_a_default_is_what_its_own_parser_gives(option: Option) -> None:
    text = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
    assert option.parse(text) == option.default


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
    assert (options.compression, options.entry_bytes) == (None, 1 << 20)
    assert (options.txn_app_id, options.txn_version) == (None, None)


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
    for option in OPTIONS:
        assert option.name in text


@pytest.mark.parametrize("key", ["path", "paths"])
def test_a_path_is_refused_with_what_to_do(key: str) -> None:
    text = _refused_read(**{key: "/x"})
    assert "take no path" in text
    assert '.option("log"' in text


@pytest.mark.parametrize("option", [o for o in OPTIONS if not (o.read and o.write)], ids=lambda o: str(o.name))
def test_options_of_the_other_direction_are_refused(option: Option) -> None:
    value = "3" if option.default is None else str(option.default)
    options = {"metadataServiceUri": URI, "log": "events", option.name: value}
    other = "reading" if option.read else "writing"
    text = _refused(writing=option.read, **options)
    assert f"option {option.name} is for {other} only: leave it out" in text


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("ensembleSize", "three", "must be a whole number"),
        ("ensembleSize", "0", "must be within 1 and 64"),
        ("txnVersion", "-1", "must be within 0 and"),
        ("entryBytes", "1q", "must be a number of bytes, or one with k, m or g"),
        ("entryBytes", "10", "must be within 1024 and 67108864 bytes"),
        ("digestType", "CRC", "must be one of CRC32C, CRC32, HMAC, DUMMY; did you mean CRC32"),
        ("compression", "gzip", "must be one of none, lz4, zstd"),
        ("entryFormat", "arow", "did you mean arrow?"),
        ("log", "", "is empty"),
        ("passwordFile", "", "is empty"),
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


def test_a_read_is_of_one_log_or_one_ledger() -> None:
    assert "neither of them is given" in _refused(writing=False, metadataServiceUri=URI)
    assert "both are given" in _refused_read(ledgerId="7")
    assert parse_options({"metadataServiceUri": URI, "ledgerId": "7"}, writing=False).ledger_id == 7


@pytest.mark.parametrize("name", ["txnAppId", "txnVersion"])
def test_transaction_options_go_together(name: str) -> None:
    assert "txnAppId and txnVersion go together" in _refused_write(**{name: "1"})


@pytest.mark.parametrize(
    ("sizes", "remedy"),
    [
        ({"ensembleSize": "2"}, "set writeQuorumSize and ackQuorumSize too"),
        ({"ensembleSize": "2", "writeQuorumSize": "2", "ackQuorumSize": "3"}, "ackQuorumSize=3"),
        ({"ensembleSize": "4", "writeQuorumSize": "5"}, "set ackQuorumSize too"),
        ({"writeQuorumSize": "1"}, "set ensembleSize and ackQuorumSize too"),
    ],
    ids=str,
)
def test_quorums_out_of_order(sizes: dict[str, str], remedy: str) -> None:
    text = _refused_write(**sizes)
    assert "ensembleSize >= writeQuorumSize >= ackQuorumSize >= 1" in text
    for name, value in sizes.items():
        assert f"{name}={value}" in text
    assert remedy in text


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
