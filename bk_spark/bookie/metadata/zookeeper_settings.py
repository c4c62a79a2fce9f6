"""Settings of a session with ZooKeeper: who it is, whom its znodes are for, and whether its connection is encrypted.

ZooKeeper's own names are used where it has them: those of its client's properties (ZooKeeper's administrator's guide,
"Encryption, Authentication, Authorization Options"). ``zkEnableSecurity`` is BookKeeper's (compatibility.md §7.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bk_spark.bookie.auth.settings import LoginSettings
from bk_spark.bookie.tls.settings import STORE_TYPE
from bk_spark.settings.kinds import BOOLEAN, OPTIONAL_TEXT, Kind
from bk_spark.settings.setting import Setting, declare

#: The beginnings of the names of settings about a file with keys.
KEY_STORE: Final = "zookeeper.ssl.keyStore"
TRUST_STORE: Final = "zookeeper.ssl.trustStore"


def _key(name: str, default: str, kind: Kind, doc: str, *, apache: bool = False) -> Any:
    return declare(Setting(name, default, kind, doc, apache=apache))


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSettings(LoginSettings):
    """Security of the session with ZooKeeper, beside TLS and logins between clients and bookies."""

    zk_digest_file: str = _key(
        "zkDigestFile",
        "",
        OPTIONAL_TEXT,
        "File with one line, `user:password`. Each session with ZooKeeper authenticates itself as this user "
        "(scheme `digest`).",
    )
    zk_enable_security: bool = _key(
        "zkEnableSecurity",
        "false",
        BOOLEAN,
        "Only the user in `zkDigestFile` may read and change the znodes that are created from now on. Existing ones "
        "stay as they are.",
        apache=True,
    )
    zk_secure: bool = _key(
        "zookeeper.client.secure",
        "false",
        BOOLEAN,
        "Connections to ZooKeeper are encrypted. The ports in `metadataServiceUri` are then those of ZooKeeper's "
        "`secureClientPort`.",
    )
    zk_trust_store: str = _key(
        f"{TRUST_STORE}.location",
        "",
        OPTIONAL_TEXT,
        "File with the certificates of the authorities that are trusted to name ZooKeeper's servers.",
    )
    zk_trust_store_type: str = _key(
        f"{TRUST_STORE}.type", "", STORE_TYPE, "Its form. Empty: by the end of its name, `.pem`, `.p12` or `.jks`."
    )
    zk_trust_store_password_path: str = _key(
        f"{TRUST_STORE}.passwordPath", "", OPTIONAL_TEXT, "File with its password, if it has one."
    )
    zk_key_store: str = _key(
        f"{KEY_STORE}.location",
        "",
        OPTIONAL_TEXT,
        "File with the private key and the certificates that this side shows to ZooKeeper, if ZooKeeper wants them.",
    )
    zk_key_store_type: str = _key(
        f"{KEY_STORE}.type", "", STORE_TYPE, "Its form. Empty: by the end of its name, `.pem`, `.p12` or `.jks`."
    )
    zk_key_store_password_path: str = _key(
        f"{KEY_STORE}.passwordPath", "", OPTIONAL_TEXT, "File with its password, if it has one."
    )
    zk_hostname_verification: bool = _key(
        "zookeeper.ssl.hostnameVerification",
        "true",
        BOOLEAN,
        "ZooKeeper's certificate must name the host in `metadataServiceUri`.",
    )
