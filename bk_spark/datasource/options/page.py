"""docs/options.md, printed from the table of options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bk_spark.datasource.options.options import OPTIONS, Group, Option, Use
from bk_spark.settings.setting import markdown_table

_INTRODUCTION: Final = """\
# Options of the data source

For `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `.format("bookkeeper")`. Option names are
case-insensitive. Unknown options are errors, and so are options that the read or write does not use. This page is
printed by `python -m bk_spark.datasource.options.page`.

Sizes are in bytes; `k`, `m` and `g` multiply by 1024, 1024² and 1024³. Durations have a unit: `ms`, `s`, `m`, `h` or
`d`.

[sql.md](sql.md) has examples, filters and SQL. [kafka-migration.md](kafka-migration.md) compares with Kafka's options.
[glossary.md](glossary.md) explains terms.
"""
_NOTES: Final = {
    Group.SOURCE: "A read needs exactly one of these. Several logs must share entryFormat, schema and password.",
    Group.RANGE: "Offsets count the entries of a log. Ranges are half-open: they do not include their end.",
    Group.NEW_LOG: "A log keeps the values that it was created with. Giving another value later is an error.",
}
_USES: Final = {
    "batch read": Use.BATCH_READ,
    "stream read": Use.STREAM_READ,
    "batch write": Use.BATCH_WRITE,
    "stream write": Use.STREAM_WRITE,
}


def reference() -> str:
    """Return the page."""
    columns: dict[str, Callable[[str, Option], str]] = {
        "option": lambda _, option: f"`{option.name}`",
        **{heading: _mark(use) for heading, use in _USES.items()},
        "default": lambda _, option: "" if option.default is None else f"`{option.default}`",
        "meaning": lambda _, option: option.doc,
    }
    lines = [_INTRODUCTION]
    for group in Group:
        options = {name: option for name, option in OPTIONS.items() if option.group is group}
        note = [_NOTES[group], ""] if group in _NOTES else []
        lines += [f"## {group.value}", "", *note, *markdown_table(columns, options, centred=_USES), ""]
    return "\n".join(lines)


def _mark(use: Use) -> Callable[[str, Option], str]:
    return lambda _, option: "x" if use in option.uses else ""


if __name__ == "__main__":
    print(reference(), end="")
