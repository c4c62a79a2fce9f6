"""The bookie's .conf file: Apache's keys, warnings that name the nearest key, errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.config import BookieConfig, load_config

_LEAST = """
metadataServiceUri=zk+hierarchical://localhost:2181/ledgers
advertisedAddress=127.0.0.1
allowLoopback=true
"""


def load(tmp_path: Path, more: str = "", least: str = _LEAST) -> tuple[BookieConfig, list[str]]:
    path = tmp_path / "bk_server.conf"
    path.write_text(least + more)
    return load_config(str(path))


def test_defaults_are_apaches(tmp_path: Path) -> None:
    config, warnings = load(tmp_path)
    assert warnings == []
    assert config.bookie_id == "127.0.0.1:3181"
    assert (config.port, config.listen_host) == (3181, "0.0.0.0")
    assert (config.journal_directory, config.ledger_directory) == ("/tmp/bk-txn", "/tmp/bk-data")
    assert config.journal_max_bytes == 2048 * 1024 * 1024
    assert config.log_size_limit_bytes == 1 << 30
    assert config.max_frame_bytes == 5242880
    assert config.zk_timeout_ms == 10_000


def test_values_comments_and_spaces(tmp_path: Path) -> None:
    config, warnings = load(
        tmp_path,
        """
        # a comment
        ! another
        bookiePort = 4000
        journalDirectories = /a/b/
        journalDirectory=/not/this
        ledgerDirectories=/c
        indexDirectories=/c
        bookieId=some.id-1
        listeningInterface=lo
        logSizeLimit=1048576
        journalSyncData=FALSE
        """,
    )
    assert warnings == []
    assert (config.port, config.bookie_id, config.listen_host) == (4000, "some.id-1", "127.0.0.1")
    assert (config.journal_directory, config.ledger_directory) == ("/a/b", "/c")
    assert (config.log_size_limit_bytes, config.journal_sync_data) == (1048576, False)


def test_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    _, warnings = load(tmp_path, "journalDirectoris=/x\nskipListSizeLimit=1\n")
    assert len(warnings) == 2
    assert "unknown key journalDirectoris" in warnings[0]
    assert "did you mean journalDirectories?" in warnings[0]
    assert "skipListSizeLimit has no effect" in warnings[1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bookiePort=http", "bookiePort must be a whole number, not 'http'"),
        ("bookiePort=70000", "bookiePort is 70000; it must lie between 1 and 65535"),
        ("journalSyncData=yes", "journalSyncData must be true or false"),
        ("journalWriteData=false", "journalWriteData must be true"),
        ("journalFormatVersionToWrite=5", "journalFormatVersionToWrite must be 6"),
        ("pageSize=4096", "pageSize must be 8192"),
        ("logSizeLimit=2147483648", "logSizeLimit is 2147483648"),
        ("ledgerDirectories=/a,/b", "ledgerDirectories names 2 directories; this release takes exactly one"),
        ("journalDirectories=/a, /b,/c", "journalDirectories names 3 directories"),
        ("indexDirectories=/elsewhere", "indexDirectories must be the same as ledgerDirectories"),
        ("bookieId=ReadOnly", "bookieId 'ReadOnly' is not a bookie id"),
        ("bookieId=a b", "bookieId 'a b' is not a bookie id"),
        ("allowLoopback=false", "advertisedAddress '127.0.0.1' is a loopback address"),
        ("advertisedAddress=no.such.host.invalid", "advertisedAddress 'no.such.host.invalid' does not resolve"),
        ("listeningInterface=nonesuch0", "listeningInterface 'nonesuch0' has no IPv4 address"),
        ("metadataServiceUri=etcd://x", "metadataServiceUri 'etcd://x'"),
        ("just words", "line 5: 'just words' is not of the form key=value"),
    ],
)
def test_wrong_values_are_errors_that_name_the_key(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load(tmp_path, line)
    assert says in str(caught.value)


def test_the_metadata_service_is_required(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="metadataServiceUri is missing"):
        load(tmp_path, least="advertisedAddress=127.0.0.1\nallowLoopback=true\n")


def test_the_file_must_be_readable_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        load_config(str(tmp_path / "missing.conf"))
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        load_config(str(tmp_path / "binary.conf"))
