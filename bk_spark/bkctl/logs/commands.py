"""The subcommands of ``bkctl log``."""

from __future__ import annotations

from typing import Any, Final

from bk_spark.bkctl.logs import changes, checks, history, rows, show

_METAVAR: Final = "list|show|history|read|append|append-ledger|create|truncate|give-up-tail|retention|delete|verify|gc"


def add_commands(groups: Any) -> None:
    """Add ``log`` with its subcommands."""
    log = groups.add_parser("log", help="logs").add_subparsers(required=True, metavar=_METAVAR)
    for module in (show, history, rows, changes, checks):
        module.add_commands(log)
