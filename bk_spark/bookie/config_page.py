"""docs/client-config.md, printed from the table of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bk_spark.bookie.auth.settings import LoginSettings
from bk_spark.bookie.config import SETTINGS
from bk_spark.bookie.metadata.zookeeper_settings import ZooKeeperSettings
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.settings.setting import Setting, markdown_table, settings_of

_TLS_FIELDS: Final = {
    *settings_of(TlsSettings),
    *(field for field in SETTINGS if field.startswith(("client_key_store", "client_trust_store"))),
}


def reference() -> str:
    """Return the text of docs/client-config.md, the table of settings."""
    tls = {field: setting for field, setting in SETTINGS.items() if field in _TLS_FIELDS}
    logins = {field: one for field, one in settings_of(LoginSettings).items() if field not in tls}
    special = {*tls, *logins}
    zookeeper = {field: one for field, one in settings_of(ZooKeeperSettings).items() if field not in special}
    others = {field: one for field, one in SETTINGS.items() if field not in special and field not in zookeeper}
    columns: dict[str, Callable[[str, Setting], str]] = {
        "key": lambda _, setting: f"`{setting.name}`",
        "": lambda _, setting: "A" if setting.apache else "",
        "field": lambda field, _: f"`{field}`",
        "default of the key": lambda _, setting: f"`{setting.default}`" if setting.default else "",
        "allowed": lambda _, setting: setting.kind.allowed,
        "meaning": lambda _, setting: setting.doc,
    }
    return "\n".join(
        [
            "# Configuration of the ledger client",
            "",
            "`ClientConfig.from_properties` takes keys, `ClientConfig(...)` takes fields. An A marks keys of Apache's",
            "client configuration, which have Apache's unit. Fields count milliseconds and bytes. Unknown keys are",
            "errors. This page is printed by `python -m bk_spark.bookie.config_page`.",
            "",
            *markdown_table(columns, others),
            "",
            "TLS of connections to bookies. [security.md](security.md) shows how to set it up.",
            "",
            *markdown_table(columns, tls),
            "",
            "Logins at bookies. The same page shows how to set them up.",
            "",
            *markdown_table(columns, logins),
            "",
            "Sessions with ZooKeeper. `zookeeper.…` are the names of ZooKeeper's own client.",
            "",
            *markdown_table(columns, zookeeper),
            "",
        ]
    )


if __name__ == "__main__":
    print(reference(), end="")
