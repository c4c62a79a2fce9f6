"""The bookie's .conf file: Apache's keys, warnings that name the nearest key, errors that name the key."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.config.config import SETTINGS, SUPPORTED_KEYS, BookieConfig
from bookie_server.config.config_keys import KNOWN_KEYS
from bookie_server.config.load import load_config
from bookie_server.config.page import reference
from bookie_server.config.texts import texts_of

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
    assert config.journal_directories == ("/tmp/bk-txn",)
    assert config.ledger_directories == config.index_directories == ("/tmp/bk-data",)
    assert config.write_cache_bytes == 64 * 1024 * 1024
    assert (config.gc_interval_ms, config.gc_over_replicated_interval_ms) == (600_000, 86_400_000)
    assert (config.minor_compaction_interval_ms, config.minor_compaction_threshold) == (3_600_000, 0.2)
    assert (config.major_compaction_interval_ms, config.major_compaction_threshold) == (86_400_000, 0.8)
    assert (config.disk_usage_threshold, config.disk_usage_warn_threshold) == (0.95, 0.90)
    assert config.disk_usage_low_water_mark == 0.95
    assert config.min_usable_entry_log_bytes == config.min_usable_high_priority_bytes == 1 << 30
    assert config.read_only_mode_enabled
    assert config.read_only_on_any_disk_full
    assert config.journal_max_bytes == 2048 * 1024 * 1024
    assert config.entry_log_size_limit_bytes == 1 << 30
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
        ledgerDirectories=/c, /d/ ,
        indexDirectories=/e
        bookieId=some.id-1
        listeningInterface=lo
        logSizeLimit=1048576
        journalSyncData=FALSE
        minorCompactionInterval=-1
        pageLimit=-1
        compactionRate=5
        """,
    )
    assert warnings == []
    assert (config.port, config.bookie_id, config.listen_host) == (4000, "some.id-1", "127.0.0.1")
    assert config.journal_directories == ("/a/b",)
    assert (config.ledger_directories, config.index_directories) == (("/c", "/d"), ("/e",))
    assert (config.minor_compaction_interval_ms, config.compaction_entries_per_s) == (0, 5)
    assert config.index_cache_bytes == 64 * 1024 * 1024
    assert (config.entry_log_size_limit_bytes, config.journal_sync_data) == (1048576, False)


def test_the_rule_on_ids_that_were_not_given_has_a_key_of_its_own(tmp_path: Path) -> None:
    assert load(tmp_path)[0].gc_brake_ids_not_given
    assert load(tmp_path, "gcBrakeShare=1\n")[0].gc_brake_ids_not_given
    config, warnings = load(tmp_path, "gcBrakeIdsNotGiven=false\n")
    assert (config.gc_brake_ids_not_given, config.gc_brake_share, warnings) == (False, 0.5, [])
    with pytest.raises(InvalidArgumentError, match="gcBrakeIdsNotGiven"):
        load(tmp_path, "gcBrakeIdsNotGiven=1\n")


def test_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    _, warnings = load(tmp_path, "journalDirectoris=/x\nnumAddWorkerThreads=1\n")
    assert len(warnings) == 2
    assert "unknown key journalDirectoris" in warnings[0]
    assert "did you mean journalDirectories?" in warnings[0]
    assert "numAddWorkerThreads has no effect" in warnings[1]


@pytest.mark.parametrize(
    "name",
    [
        "serverNumIOThreads",
        "dbStorage_writeCacheMaxSizeMb",
        "dbStorage_readAheadCacheMaxSizeMb",
        "dbStorage_rocksDB_blockCacheSize",
        "httpServerKeyStorePassword",
        "gcEntryLogMetadataCacheEnabled",
        "storageserver.grpc.port",
        "stickyReadSEnabled",
        "useShortHostName",
    ],
)
def test_keys_of_apaches_own_file_are_known(tmp_path: Path, name: str) -> None:
    _, warnings = load(tmp_path, f"{name}=1\n")
    assert [warning.partition(": ")[2] for warning in warnings] == [f"{name} has no effect in this bookie"]


def test_what_may_be_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load(tmp_path, "httpServerKeyStorePassword hunter2")
    assert "hunter2" not in str(caught.value)
    _, warnings = load(tmp_path, "httpServerKeyStorePassword=hunter2")
    assert "hunter2" not in str(warnings)


def test_the_admin_api_listens_here_alone_unless_told(tmp_path: Path) -> None:
    assert load(tmp_path)[0].http_host == "127.0.0.1"
    given = "httpServerHost=0.0.0.0\nhttpServerTokenFile=/t\nhttpServerKeyStorePath=/k\n"
    _, warnings = load(tmp_path, given)
    assert [warning.partition(": ")[2] for warning in warnings] == [
        "httpServerKeyStorePath has no effect without httpServerTlsEnable=true",
        "httpServerTlsEnable is false, so tokens of the admin API cross the network in clear",
    ]
    given += "httpServerTlsEnable=true\ntlsCertFilesRefreshDurationSeconds=60\ntlsKeyStore=/x\n"
    _, warnings = load(tmp_path, given)
    assert [warning.partition(": ")[2] for warning in warnings] == [
        "tlsKeyStore has no effect without tlsProviderFactoryClass: TLS is off"
    ]


def test_a_journal_shared_with_ledgers_through_a_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(InvalidArgumentError, match="both name"):
        load(tmp_path, f"journalDirectories={tmp_path}/link,/b\nledgerDirectories={tmp_path}/a\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bookiePort=http", "bookiePort: 'http' must be a whole number from 1 to 65535"),
        ("bookiePort=70000", "bookiePort: '70000' must be a whole number from 1 to 65535"),
        ("journalSyncData=yes", "journalSyncData: 'yes' must be true or false"),
        ("journalWriteData=false", "journalWriteData must be true"),
        ("journalFormatVersionToWrite=5", "journalFormatVersionToWrite must be 6"),
        ("pageSize=4096", "pageSize must be 8192"),
        ("logSizeLimit=2147483648", "logSizeLimit: '2147483648' must be a whole number from 65536 to 1073741824"),
        ("ledgerDirectories=/a,/b/../a", "ledgerDirectories: '/a,/b/../a' names the directory /a twice"),
        ("ledgerDirectories=/a,/b\0", "has a NUL character in it"),
        ("ledgerDirectories=,", "ledgerDirectories: ',' names no directory"),
        (
            "journalDirectories=/a,/tmp/bk-data",
            "journalDirectories and ledgerDirectories or indexDirectories both",
        ),
        ("diskUsageThreshold=1.0", "diskUsageThreshold is 1.0; it must be more than 0 and less than 1"),
        ("diskUsageThreshold=full", "diskUsageThreshold: 'full' must be a number from 0 to 1"),
        ("diskUsageThreshold=nan", "diskUsageThreshold: 'nan' must be a number from 0 to 1"),
        ("diskUsageLwmThreshold=0.96", "diskUsageLwmThreshold is 0.96, more than diskUsageThreshold, 0.95"),
        ("diskUsageWarnThreshold=0.96", "diskUsageWarnThreshold is 0.96, more than diskUsageThreshold, 0.95"),
        (
            "minorCompactionInterval=60",
            "minorCompactionInterval is 60 s; it must not be shorter than gcWaitTime",
        ),
        ("majorCompactionInterval=60", "majorCompactionInterval is 60 s; it must not be shorter than gcWaitTime"),
        ("minorCompactionThreshold=0.8", "minorCompactionThreshold must be smaller than majorCompactionThreshold"),
        ("majorCompactionInterval=3600", "minorCompactionInterval must be smaller than majorCompactionInterval"),
        ("majorCompactionThreshold=1.5", "majorCompactionThreshold: '1.5' must be a number from 0 to 1"),
        ("bookieId=ReadOnly", "bookieId 'ReadOnly' is not a bookie id"),
        ("bookieId=a b", "bookieId 'a b' is not a bookie id"),
        ("bookieId=..", "bookieId '..' is not a bookie id"),
        ("bookiePort=31_81", "bookiePort: '31_81' must be a whole number"),
        ("allowLoopback=false", "advertisedAddress '127.0.0.1' is a loopback address"),
        ("advertisedAddress=no.such.host.invalid", "advertisedAddress 'no.such.host.invalid' does not resolve"),
        (f"advertisedAddress={'a' * 100}.org", "does not resolve"),
        ("listeningInterface=nonesuch0", "listeningInterface 'nonesuch0' has no IPv4 address"),
        ("metadataServiceUri=etcd://x", "metadataServiceUri 'etcd://x'"),
        ("just words", "line 5 is not of the form key=value"),
        ("tlsProviderFactoryClass=org.a.Factory", "must be org.apache.bookkeeper.tls.TLSContextFactory, or empty"),
        ("tlsRequired=true", "tlsRequired is true, but TLS is off"),
        ("tlsKeyStoreType=PFX", "must be one of PEM, PKCS12, JKS"),
        ("tlsEnabledProtocols=TLSv1.2,TLSv1.1", "names 'TLSv1.1', which is not TLSv1.3 or TLSv1.2"),
        ("bookieAuthProviderFactoryClass=org.a.Sasl", "bookieAuthProviderFactoryClass: 'org.a.Sasl' must be "),
        (
            "httpServerTlsEnable=true\nhttpServerKeyStorePassword=hunter2",
            "httpServerKeyStorePassword is a secret: write it into a file, and name the file in "
            "httpServerKeyStorePasswordPath",
        ),
        ("bookieRacks=host", "bookieRacks is wrong: 'host' in the table of racks is not of the form host=/rack"),
        ("zkEnableSecurity=true", "zkEnableSecurity is true, but without a user (zkDigestFile)"),
    ],
)
def test_wrong_values_are_errors_that_name_the_key(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load(tmp_path, line)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_what_a_missing_key_takes_from_another(tmp_path: Path) -> None:
    config, _ = load(tmp_path, "logSizeLimit=1048576\ndiskUsageThreshold=0.5\nledgerDirectories=/a,/b\n")
    assert config.min_usable_entry_log_bytes == config.min_usable_high_priority_bytes == 1048576
    assert config.disk_usage_low_water_mark == config.disk_usage_warn_threshold == 0.5
    assert config.index_directories == ("/a", "/b")
    config, _ = load(tmp_path, "minUsableSizeForEntryLogCreation=7\ndiskUsageLwmThreshold=0.4\n")
    assert (config.min_usable_entry_log_bytes, config.min_usable_high_priority_bytes) == (7, 7)
    assert config.disk_usage_low_water_mark == 0.4


def test_compactions_that_are_off_need_not_fit(tmp_path: Path) -> None:
    config, _ = load(tmp_path, "minorCompactionInterval=10\nminorCompactionThreshold=0\nmajorCompactionInterval=0\n")
    assert (config.minor_compaction_threshold, config.major_compaction_interval_ms) == (0, 0)


def test_a_guarantee_that_cannot_be_given_up_is_a_warning(tmp_path: Path) -> None:
    _, warnings = load(tmp_path, "useTransactionalCompaction=false\nverifyMetadataOnGC=true\n")
    assert len(warnings) == 1
    assert "useTransactionalCompaction is always on" in warnings[0]


def test_the_texts_for_operators_have_no_secret(tmp_path: Path) -> None:
    """Apache's keys for passwords have no effect here, but a file may have them."""
    config, _ = load(
        tmp_path, "httpServerKeyStorePassword=hunter2\nbookiePort=4000\nindexDirectories=/i\nmine=hunter2\n"
    )
    texts = texts_of(config.given)
    assert (texts["bookiePort"], texts["indexDirectories"], texts["zkTimeout"]) == ("4000", "/i", "10000")
    assert config.given.keys() >= {"bookiePort", "metadataServiceUri"}
    assert "zkTimeout" not in config.given
    assert "hunter2" not in str(texts)


def test_tokens_in_clear_over_grpc_are_a_warning(tmp_path: Path) -> None:
    admin = "grpcServerEnabled=true\ngrpcAdminServiceEnabled=true\nhttpServerTokenFile=/token\n"
    _, (warning,) = load(tmp_path, admin)
    assert "tokens of the admin API cross the network in clear" in warning
    _, (warning,) = load(tmp_path, "grpcAdminServiceEnabled=true\n")
    assert "grpcAdminServiceEnabled has no effect without grpcServerEnabled=true" in warning


def test_a_check_of_placement_without_racks_is_a_warning(tmp_path: Path) -> None:
    check = "auditorPeriodicPlacementPolicyCheckInterval=86400\n"
    _, (warning,) = load(tmp_path, check)
    assert "auditorPeriodicPlacementPolicyCheckInterval has no effect without racks" in warning
    config, warnings = load(tmp_path, check + "rackMappingZnode=/bookies\nminNumRacksPerWriteQuorum=3\n")
    assert not warnings
    assert config.placement_check_interval_ms == 86_400_000
    client = config.client_config()
    assert (client.rack_mapping_znode, client.min_racks_per_write_quorum) == ("/bookies", 3)


def test_every_setting_has_a_key_that_no_other_has() -> None:
    names = [name for one in SETTINGS.values() for name in (one.name, one.other_name) if name]
    assert len(names) == len(set(names))
    without = [f.name for f in fields(BookieConfig) if not f.metadata]
    assert without == ["metadata_service_uri", "bookie_id", "advertised_host", "listen_host", "given"]
    assert not SUPPORTED_KEYS & KNOWN_KEYS


def test_the_page_of_keys_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "bookie-config.md"
    assert page.read_text("utf-8") == reference(), "run: python -m bookie_server.config > docs/bookie-config.md"


def test_the_metadata_service_is_required(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="metadataServiceUri is missing"):
        load(tmp_path, least="advertisedAddress=127.0.0.1\nallowLoopback=true\n")


def test_a_file_of_an_editor_that_marks_its_encoding(tmp_path: Path) -> None:
    """Its first key was unknown, and a bookie would have used the default directory for ledgers."""
    lines = "ledgerDirectories=/data\r\n# Ä\r\nmetadataServiceUri=zk://127.0.0.1:2181/ledgers\r\n"
    (tmp_path / "marked.conf").write_bytes(
        b"\xef\xbb\xbf" + (lines + "advertisedAddress=127.0.0.1\r\nallowLoopback=true\r\n").encode()
    )
    config, warnings = load_config(str(tmp_path / "marked.conf"))
    assert config.ledger_directories == ("/data",)
    assert warnings == []


def test_a_key_with_two_values_is_told(tmp_path: Path) -> None:
    """Apache's bookie would use both of these directories."""
    config, warnings = load(tmp_path, "ledgerDirectories=/a\nallowLoopback=true\nledgerDirectories=/b\n")
    assert config.ledger_directories == ("/b",)
    (warning,) = warnings
    assert re.search(r"ledgerDirectories has a value in line \d and another in line \d, which counts", warning)
    assert "/a" not in warning


def test_the_file_must_be_readable_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        load_config(str(tmp_path / "missing.conf"))
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        load_config(str(tmp_path / "binary.conf"))
