"""The keys of the admin API and of metrics (compatibility.md §7.2)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.tls.settings import STORE_TYPE
from bk_spark.settings.kinds import BOOLEAN, OPTIONAL_TEXT, TEXT, Kind, WrongValueError, whole
from bk_spark.settings.setting import key
from bookie_server.config.auto_recovery import AutoRecoveryConfig

#: As that of the log library.
DEFAULT_LOG_ROOT: Final = "/bk_spark/logs"


def _path(text: str) -> str:
    parts = text.split("/")
    if len(parts) < 2 or parts[0] or any(part in ("", ".", "..") for part in parts[1:]):
        raise WrongValueError("must be a path in ZooKeeper, such as /bk_spark/logs")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AdministrationConfig(AutoRecoveryConfig):
    """Settings of the admin API. Tokens and passwords are never settings: they are in files."""

    http_enabled: bool = key(
        "httpServerEnabled", "false", BOOLEAN, "Serve the admin API, the page of the cluster, and metrics."
    )
    http_port: int = key("httpServerPort", "8080", whole(most=65535), "Port of the admin API. 0: any free one.")
    http_host: str = key(
        "httpServerHost",
        "127.0.0.1",
        TEXT,
        "Address of the admin API. `0.0.0.0`: all of this host. Apache's default is `0.0.0.0`.",
    )
    http_token_file: str = key(
        "httpServerTokenFile",
        "",
        OPTIONAL_TEXT,
        "File with the token that a request must show to change something. Empty: nothing can be changed.",
        apache=False,
    )
    http_read_token_file: str = key(
        "httpServerReadTokenFile",
        "",
        OPTIONAL_TEXT,
        "File with the token that a request must show to read. That of `httpServerTokenFile` does, too. Empty: "
        "everybody who reaches the port may read.",
        apache=False,
    )
    http_tls_enabled: bool = key("httpServerTlsEnable", "false", BOOLEAN, "Serve the admin API by HTTPS only.")
    http_key_store_type: str = key(
        "httpServerKeyStoreType",
        "JKS",
        STORE_TYPE,
        "Form of `httpServerKeyStorePath`, as that of `tlsKeyStore`.",
        apache=False,
    )
    http_key_store: str = key(
        "httpServerKeyStorePath",
        "",
        OPTIONAL_TEXT,
        "File with the private key. PEM: only the key. PKCS12: the key and its certificates.",
    )
    http_key_store_password_path: str = key(
        "httpServerKeyStorePasswordPath",
        "",
        OPTIONAL_TEXT,
        "File with the password of `httpServerKeyStorePath`, if it has one.",
        apache=False,
    )
    http_certificate_path: str = key(
        "httpServerCertificatePath",
        "",
        OPTIONAL_TEXT,
        "PEM only: file with the certificate, and the chain up to the CA.",
        apache=False,
    )
    http_trust_store_type: str = key(
        "httpServerTrustStoreType", "JKS", STORE_TYPE, "Form of `httpServerTrustStorePath`.", apache=False
    )
    http_trust_store: str = key(
        "httpServerTrustStorePath",
        "",
        OPTIONAL_TEXT,
        "File with the certificates of authorities. If it is set, each client must have a certificate of one of them.",
    )
    http_trust_store_password_path: str = key(
        "httpServerTrustStorePasswordPath",
        "",
        OPTIONAL_TEXT,
        "File with the password of `httpServerTrustStorePath`, if it has one.",
        apache=False,
    )
    log_root: str = key(
        "httpServerLogRoot",
        DEFAULT_LOG_ROOT,
        Kind("a path in ZooKeeper", _path, lambda value: value.startswith("/")),
        "Where the logs are that the page of the cluster shows.",
        apache=False,
    )
    statistics_enabled: bool = key("enableStatistics", "true", BOOLEAN, "Collect metrics.")
    statistics_port: int = key(
        "prometheusStatsHttpPort", "0", whole(most=65535), "Serve the metrics on this port too. 0: no."
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``, an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
