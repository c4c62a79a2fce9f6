"""Processes below a process or in its session, to suspend, resume or kill them together (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


def command_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(pid: int) -> dict[int, int]:
    """All processes below ``pid``, each with its parent."""
    parents = {child: process.parent for child, process in _processes().items()}
    found: dict[int, int] = {}
    below = [pid]
    while below:
        parent = below.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found.update(dict.fromkeys(children, parent))
        below += children
    return found


def session_members(session: int) -> list[int]:
    """The living processes of a session, sorted."""
    return sorted(pid for pid, process in _processes().items() if process.session == session and process.state != "Z")


def spark_workers(pid: int, module: str) -> list[int]:
    """Python workers below ``pid`` that run ``pyspark.<module>``, without the daemons that fork them."""
    found = descendants(pid)
    return [child for child, parent in found.items() if module in command_of(child) and module in command_of(parent)]


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to ``pid`` and all processes below it."""
    signal_all((*descendants(pid), pid), number)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those that have not ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass(frozen=True, slots=True)
class _Process:
    state: str
    parent: int
    session: int


def _processes() -> dict[int, _Process]:
    """All processes."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = Path(f"/proc/{entry}/stat").read_text("ascii", errors="replace")
                # After the name, which may contain anything: state, parent, group, session.
                state, parent, _, session, *_ = stat.rpartition(")")[2].split()
                found[int(entry)] = _Process(state, int(parent), int(session))
    return found
