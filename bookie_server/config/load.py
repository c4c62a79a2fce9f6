"""Reading a ``.conf`` file: ``key=value`` lines, ``#`` comments, lists separated by commas.

Apache's keys that have no effect here give a warning. An unknown key gives a warning that names the nearest known key.
A wrong value is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from bk_spark.bookie.metadata.zookeeper_settings import ZooKeeperSettings
from bk_spark.bookie.placement.rack_names import parse_rack_table
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.settings.setting import settings_of
from bookie_server.config.addresses import find_addresses
from bookie_server.config.administration import is_loopback
from bookie_server.config.conf_file import ConfFile
from bookie_server.config.config import SETTINGS, SUPPORTED_KEYS, BookieConfig
from bookie_server.config.config_keys import ALWAYS_SO, FIXED_VALUES, KNOWN_KEYS
from bookie_server.config.texts import given_texts

_TLS_SWITCH: Final = "tlsProviderFactoryClass"
_ZK_TLS: Final = "zookeeper.ssl."
_HTTP_TLS_SWITCH: Final = "httpServerTlsEnable"
#: The keys of TLS that concern the admin API, too.
_OF_HTTP_TOO: Final = ("tls_protocols", "tls_cipher_suites", "tls_refresh_ms")
_HTTP_STORES: Final = ("httpServerKeyStore", "httpServerTrustStore")
_DEFAULTS: Final = {field.name: field.default for field in fields(BookieConfig)}


def load_config(path: str) -> tuple[BookieConfig, list[str]]:
    """Load the file at ``path``. Return configuration and warnings. Raises InvalidArgumentError naming key and file."""
    conf = ConfFile(path)
    warnings = [*conf.warnings, *conf.unknown_warnings(SUPPORTED_KEYS, KNOWN_KEYS)]
    for name, (wanted, why) in FIXED_VALUES.items():
        if conf.text(name).lower() not in ("", wanted):
            raise conf.error(name, f"must be {wanted}: {why}")
    for name, how in ALWAYS_SO.items():
        if not conf.flag(name, True):
            warnings.append(conf.warning(name, how))
    uri = conf.text("metadataServiceUri")
    if not uri:
        raise conf.error(
            "metadataServiceUri", "is missing; set it, for example to zk+hierarchical://localhost:2181/ledgers"
        )
    values: dict[str, Any] = {}
    for field, setting in SETTINGS.items():
        if (value := conf.setting(setting)) is not None:
            values[field] = value
    _add_derived(values)
    addresses = find_addresses(conf, values.get("port", 3181))
    config = BookieConfig(
        metadata_service_uri=MetadataServiceUri.parse(uri),
        bookie_id=addresses.bookie_id,
        advertised_host=addresses.advertised_host,
        listen_host=addresses.listen_host,
        given=given_texts(conf),
        **values,
    )
    _check_together(config, conf)
    if not config.tls_enabled:
        used = _OF_HTTP_TOO if config.http_tls_enabled else ()
        keys = {field: setting.name for field, setting in settings_of(TlsSettings).items() if field not in used}
        tls = [name for name in keys.values() if name != _TLS_SWITCH]
        warnings += _without_effect(conf, tls, f"{_TLS_SWITCH}: TLS is off")
    if not config.grpc_enabled:
        keys_of_grpc = ["grpcServerPort", "grpcLogServiceEnabled", "grpcLogRoot", "grpcAdminServiceEnabled"]
        warnings += _without_effect(conf, keys_of_grpc, "grpcServerEnabled=true")
    has_tokens = bool(config.http_token_file or config.http_read_token_file)
    if config.grpc_admin_enabled and has_tokens and not config.tls_enabled and not is_loopback(config.listen_host):
        warnings.append(
            conf.warning(
                "grpcAdminServiceEnabled", "is true without TLS, so tokens of the admin API cross the network in clear"
            )
        )
    if not config.zk_secure:
        zookeeper = [each.name for each in settings_of(ZooKeeperSettings).values() if each.name.startswith(_ZK_TLS)]
        warnings += _without_effect(conf, zookeeper, "zookeeper.client.secure=true")
    if not config.http_tls_enabled:
        stores = [f"{store}{what}" for store in _HTTP_STORES for what in ("Path", "Type", "PasswordPath")]
        warnings += _without_effect(conf, [*stores, "httpServerCertificatePath"], f"{_HTTP_TLS_SWITCH}=true")
        if has_tokens and not is_loopback(config.http_host):
            warnings.append(
                conf.warning(_HTTP_TLS_SWITCH, "is false, so tokens of the admin API cross the network in clear")
            )
    try:
        parse_rack_table(config.bookie_racks)
    except InvalidArgumentError as error:
        raise conf.error("bookieRacks", f"is wrong: {error}") from error
    if config.placement_check_interval_ms and not config.has_racks:
        warnings.append(
            conf.warning(
                "auditorPeriodicPlacementPolicyCheckInterval",
                "has no effect without racks: set rackMappingZnode, networkTopologyScriptFileName or bookieRacks",
            )
        )
    return config, warnings


def _without_effect(conf: ConfFile, names: Iterable[str], without: str) -> list[str]:
    return [conf.warning(name, f"has no effect without {without}") for name in names if conf.text(name)]


def _add_derived(values: dict[str, Any]) -> None:
    """Add missing keys that default to the value of another key."""
    for name, source in (
        ("index_directories", "ledger_directories"),
        ("disk_usage_low_water_mark", "disk_usage_threshold"),
        ("min_usable_entry_log_bytes", "entry_log_size_limit_bytes"),
        ("min_usable_high_priority_bytes", "min_usable_entry_log_bytes"),
    ):
        if name not in values:
            values[name] = values.get(source, _DEFAULTS[source])
    if "disk_usage_warn_threshold" not in values:
        usage = values.get("disk_usage_threshold", _DEFAULTS["disk_usage_threshold"])
        values["disk_usage_warn_threshold"] = min(_DEFAULTS["disk_usage_warn_threshold"], usage)
    if values.get("index_cache_bytes", 1) <= 0:
        del values["index_cache_bytes"]


def _check_together(config: BookieConfig, conf: ConfFile) -> None:
    """Check settings that depend on each other (compatibility.md §5.10, §5.12). Raises InvalidArgumentError."""
    if config.zk_enable_security and not config.zk_digest_file:
        raise conf.error("zkEnableSecurity", "is true, but without a user (zkDigestFile) znodes cannot be kept for one")
    for name, value in (
        ("diskUsageThreshold", config.disk_usage_threshold),
        ("diskUsageWarnThreshold", config.disk_usage_warn_threshold),
        ("diskUsageLwmThreshold", config.disk_usage_low_water_mark),
    ):
        if not 0 < value < 1:
            raise conf.error(name, f"is {value}; it must be more than 0 and less than 1")
    for name, value in (
        ("diskUsageWarnThreshold", config.disk_usage_warn_threshold),
        ("diskUsageLwmThreshold", config.disk_usage_low_water_mark),
    ):
        if value > config.disk_usage_threshold:
            raise conf.error(name, f"is {value}, more than diskUsageThreshold, {config.disk_usage_threshold}")
    minor = (config.minor_compaction_interval_ms, config.minor_compaction_threshold)
    major = (config.major_compaction_interval_ms, config.major_compaction_threshold)
    for name, (interval_ms, threshold) in (("minorCompactionInterval", minor), ("majorCompactionInterval", major)):
        if interval_ms > 0 and threshold > 0 and interval_ms < config.gc_interval_ms:
            raise conf.error(
                name, f"is {interval_ms // 1000} s; it must not be shorter than gcWaitTime, {config.gc_interval_ms} ms"
            )
    if min(*minor, *major) > 0:
        for name, of_minor, of_major in zip(
            ("minorCompactionInterval", "minorCompactionThreshold"), minor, major, strict=True
        ):
            if of_minor >= of_major:
                raise conf.error(name, f"must be smaller than {name.replace('minor', 'major')}")
    if config.http_tls_enabled:
        for store in _HTTP_STORES:
            if conf.text(f"{store}Password"):
                raise conf.error(
                    f"{store}Password", f"is a secret: write it into a file, and name the file in {store}PasswordPath"
                )
    if config.tls_required and not config.tls_enabled:
        raise conf.error("tlsRequired", "is true, but TLS is off: set tlsProviderFactoryClass")
    if config.grpc_enabled and config.tls_enabled and (config.tls_protocols or config.tls_cipher_suites):
        raise conf.error(
            "grpcServerEnabled",
            "is true, and tlsEnabledProtocols or tlsEnabledCipherSuites is set, which gRPC cannot obey: it always uses "
            "TLSv1.3 or TLSv1.2 with its own choice of suites",
        )
    others = {os.path.realpath(path) for path in (*config.ledger_directories, *config.index_directories)}
    shared = {path for path in config.journal_directories if os.path.realpath(path) in others}
    if shared and len(config.journal_directories) > 1:
        raise conf.error(
            "journalDirectories", f"and ledgerDirectories or indexDirectories both name {', '.join(sorted(shared))}"
        )
