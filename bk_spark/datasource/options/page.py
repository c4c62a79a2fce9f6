"""docs/options.md, printed from the table of options."""

from __future__ import annotations

from typing import Final

from bk_spark.datasource.options.table import OPTIONS, Group, Use

_INTRODUCTION: Final = """\
# Options of the data source

For `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `.format("bookkeeper")`. Names are not
case-sensitive. An option that does not exist, or that is of no use where it is given, is an error. This page is printed
by `python -m bk_spark.datasource.options.page`.

Sizes are in bytes; `k`, `m` and `g` multiply by 1024, 1024² and 1024³. Durations have a unit: `ms`, `s`, `m`, `h` or
`d`.

[sql.md](sql.md) has examples, filters and SQL; [kafka-migration.md](kafka-migration.md) compares with Kafka's options.
"""
_NOTES: Final = {
    Group.SOURCE: (
        "A read names exactly one of these. Several logs must have one entryFormat, one schema and one password."
    ),
    Group.RANGE: "Offsets count the entries of a log. Ranges are half-open: the end is not part of them.",
    Group.NEW_LOG: "A log keeps what it was made with; to give something else later is an error.",
}
_COLUMNS: Final = {
    "batch read": Use.BATCH_READ,
    "stream read": Use.STREAM_READ,
    "batch write": Use.BATCH_WRITE,
    "stream write": Use.STREAM_WRITE,
}


def reference() -> str:
    """The page."""
    lines = [_INTRODUCTION]
    for group in Group:
        lines += [f"## {group.value}", ""]
        if group in _NOTES:
            lines += [_NOTES[group], ""]
        lines += [f"| option | {' | '.join(_COLUMNS)} | default | meaning |", "|---|:-:|:-:|:-:|:-:|---|---|"]
        for option in OPTIONS:
            if option.group is group:
                marks = " | ".join("x" if use in option.uses else "" for use in _COLUMNS.values())
                default = "" if option.default is None else f"`{option.default}`"
                lines.append(f"| `{option.name}` | {marks} | {default} | {option.doc} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(reference(), end="")
