"""What ``bkctl top`` prints of a cluster: all that is wrong, and what was left out."""

from __future__ import annotations

from typing import Any

from bk_spark.bkctl.top import _lines

BOOKIE: dict[str, Any] = {
    "bookie": "b1", "state": "writable", "rack": None, "problem": None, "disks": [], "total_bytes": 10,
    "free_bytes": None, "adds_per_s": None, "written_bytes_per_s": None, "reads_per_s": None,
    "read_bytes_per_s": None, "add_p99_ms": None,
}  # fmt: skip
SEEN: dict[str, Any] = {
    "collected_ms": 1000, "cluster": "zk://here/ledgers", "problems": [], "repair": None, "logs": [],
    "bookies": [BOOKIE], "bookie_states": {"writable": 1, "read-only": 0, "not registered": 0},
    "ledgers": {"total": 5, "more": False, "states": {"open": 5, "closed": 0}, "unread": 0},
    "readers": [], "other_logs": 0, "other_readers": 0,
}  # fmt: skip


def test_nothing_is_left_out() -> None:
    lines = list(_lines(SEEN))
    assert "ledgers  5: 5 open" in lines
    assert not any("more" in line for line in lines)
    assert not any("READER" in line for line in lines)


def test_what_was_left_out_and_what_is_wrong() -> None:
    position = {"log": "clicks", "lag_entries": 3, "read_to": 1, "end": 4}
    readers = [
        {"reader": "h, process 1", "problem": None, "told_ms": 900, "logs": [position], "other_logs": 7},
        {"reader": "\x1b[2J", "problem": "it is damaged", "logs": [], "other_logs": 0},
    ]
    lines = list(
        _lines(
            SEEN
            | {"readers": readers, "other_readers": 4, "ledgers": SEEN["ledgers"] | {"more": True}}
            | {"bookie_states": {"writable": 1, "read-only": 2, "not registered": 3}}
        )
    )
    for expected in (
        "ledgers  more than 5, of the newest: 5 open", "  and 5 more bookies", "  and 7 more logs of h, process 1",
        "  \\u001b[2J: it is damaged", "  and 4 more readers",
    ):  # fmt: skip
        assert expected in lines, lines
