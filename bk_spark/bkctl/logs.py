"""``bkctl log …``: its commands are in modules by what they are for."""

from __future__ import annotations

from typing import Any, Final

from bk_spark.bkctl import log_changes, log_checks, log_rows, log_show

_METAVAR: Final = "list|show|read|append|append-ledger|create|truncate|retention|delete|verify|gc"


def add_commands(groups: Any) -> None:
    log = groups.add_parser("log", help="logs").add_subparsers(required=True, metavar=_METAVAR)
    for module in (log_show, log_rows, log_changes, log_checks):
        module.add_commands(log)
