"""Settings of a session with ZooKeeper: its user, who may use its znodes, and whether its connection is encrypted.

ZooKeeper's own names are used where it has them: those of its client's properties (ZooKeeper's administrator's guide,
"Encryption, Authentication, Authorization Options"). ``zkEnableSecurity`` is BookKeeper's (compatibility.md §7.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.auth.settings import LoginSettings
from bk_spark.bookie.tls.settings import STORE_TYPE
from bk_spark.settings.kinds import BOOLEAN, OPTIONAL_TEXT
from bk_spark.settings.setting import key

#: The beginnings of the names of settings about a file with keys.
KEY_STORE: Final = "zookeeper.ssl.keyStore"
TRUST_STORE: Final = "zookeeper.ssl.trustStore"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSettings(LoginSettings):
    """Security of the session with ZooKeeper, beside TLS and logins between clients and bookies."""

    zk_digest_file: str = key(
        "zkDigestFile",
        "",
        OPTIONAL_TEXT,
        "File with one line, `user:password`. Each session with ZooKeeper authenticates itself as this user "
        "(scheme `digest`).",
        apache=False,
    )
    zk_enable_security: bool = key(
        "zkEnableSecurity",
        "false",
        BOOLEAN,
        "Only the user in `zkDigestFile` may read and change the znodes that are created from now on. Existing ones "
        "stay as they are.",
    )
    zk_secure: bool = key(
        "zookeeper.client.secure",
        "false",
        BOOLEAN,
        "Connections to ZooKeeper are encrypted. The ports in `metadataServiceUri` are then those of ZooKeeper's "
        "`secureClientPort`.",
        apache=False,
    )
    zk_trust_store: str = key(
        f"{TRUST_STORE}.location",
        "",
        OPTIONAL_TEXT,
        "File with the certificates of the authorities that are trusted to name ZooKeeper's servers.",
        apache=False,
    )
    zk_trust_store_type: str = key(
        f"{TRUST_STORE}.type",
        "",
        STORE_TYPE,
        "Its form. Empty: by the end of its name, `.pem`, `.p12` or `.jks`.",
        apache=False,
    )
    zk_trust_store_password_path: str = key(
        f"{TRUST_STORE}.passwordPath", "", OPTIONAL_TEXT, "File with its password, if it has one.", apache=False
    )
    zk_key_store: str = key(
        f"{KEY_STORE}.location",
        "",
        OPTIONAL_TEXT,
        "File with the private key and the certificates that this side shows to ZooKeeper, if ZooKeeper wants them.",
        apache=False,
    )
    zk_key_store_type: str = key(
        f"{KEY_STORE}.type",
        "",
        STORE_TYPE,
        "Its form. Empty: by the end of its name, `.pem`, `.p12` or `.jks`.",
        apache=False,
    )
    zk_key_store_password_path: str = key(
        f"{KEY_STORE}.passwordPath", "", OPTIONAL_TEXT, "File with its password, if it has one.", apache=False
    )
    zk_hostname_verification: bool = key(
        "zookeeper.ssl.hostnameVerification",
        "true",
        BOOLEAN,
        "ZooKeeper's certificate must name the host in `metadataServiceUri`.",
        apache=False,
    )
