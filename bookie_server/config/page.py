"""docs/bookie-config.md, generated from the table of settings."""

from __future__ import annotations

from collections.abc import Callable

from bk_spark.bookie.auth.settings import LoginSettings
from bk_spark.bookie.metadata.zookeeper_settings import ZooKeeperSettings
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.settings.setting import Setting, markdown_table, settings_of
from bookie_server.config.access import AccessConfig
from bookie_server.config.administration import AdministrationConfig
from bookie_server.config.config import SETTINGS
from bookie_server.config.config_keys import ALWAYS_SO, FIXED_VALUES, KNOWN_KEYS, OTHER_KEYS


def reference() -> str:
    """Return the page."""
    tls = settings_of(TlsSettings)
    access = settings_of(AccessConfig).keys() - settings_of(AdministrationConfig).keys()
    access |= settings_of(LoginSettings).keys() - tls.keys() | {"sasl_auditor_section"}
    logins = {name: one for name, one in SETTINGS.items() if name in access}
    special = {*tls, *access}
    zookeeper = {name: one for name, one in settings_of(ZooKeeperSettings).items() if name not in special}
    others = {name: one for name, one in SETTINGS.items() if name not in special and name not in zookeeper}
    columns: dict[str, Callable[[str, Setting], str]] = {
        "key": lambda _, setting: f"`{setting.name}`" + (f" (or `{setting.other_name}`)" if setting.other_name else ""),
        "default": lambda _, setting: setting.missing or f"`{setting.default}`",
        "allowed": lambda _, setting: setting.kind.allowed,
        "meaning": lambda _, setting: setting.doc,
    }
    return "\n".join(
        [
            "# Configuration of the bookie",
            "",
            "Keys of the file for `bookie-server start --conf`. Names and units are Apache's. This page is printed by",
            "`python -m bookie_server.config`.",
            "",
            "| key | meaning |",
            "|---|---|",
            *(f"| `{name}` | {meaning} |" for name, meaning in OTHER_KEYS.items()),
            "",
            *markdown_table(columns, others),
            "",
            "TLS between clients and bookies. The bookie's own client (self-healing) uses the same keys:",
            "",
            *markdown_table(columns, tls),
            "",
            "Who may use the bookie, and how its own client logs in ([security.md](security.md)):",
            "",
            *markdown_table(columns, logins),
            "",
            "Sessions with ZooKeeper. `zookeeper.…` are the names of ZooKeeper's own client:",
            "",
            *markdown_table(columns, zookeeper),
            "",
            "Keys with a single allowed value:",
            *(f"`{name}={wanted}` ({why})." for name, (wanted, why) in FIXED_VALUES.items()),
            "",
            "Keys that always have their safe value; another value is a warning:",
            *(f"`{name}` {how}." for name, how in ALWAYS_SO.items()),
            "",
            "Apache's other keys have no effect. Each gives a warning:",
            ", ".join(f"`{name}`" for name in sorted(KNOWN_KEYS)) + ".",
            "",
        ]
    )
