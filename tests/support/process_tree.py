"""Processes below a process, to be suspended, resumed or killed together (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def command_of(pid: int) -> str:
    """The command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(pid: int) -> dict[int, int]:
    """All processes below ``pid``, each with its parent."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, int] = {}
    below = [pid]
    while below:
        parent = below.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found.update(dict.fromkeys(children, parent))
        below += children
    return found


def spark_workers(pid: int, module: str) -> list[int]:
    """Python workers below ``pid`` that run ``pyspark.<module>``; the daemons that fork them are not among them."""
    found = descendants(pid)
    return [child for child, parent in found.items() if module in command_of(child) and module in command_of(parent)]


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to ``pid`` and all below it."""
    for one in (*descendants(pid), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)
