"""Process statistics from the operating system (Linux)."""

from __future__ import annotations

import os
from pathlib import Path


def resident_mib(pid: int | None) -> float:
    """Resident memory in MiB; 0 if the process has ended."""
    return _status_mib(pid, "VmRSS")


def peak_resident_mib(pid: int | None) -> float:
    """Highest resident memory so far, in MiB; 0 if the process has ended."""
    return _status_mib(pid, "VmHWM")


def own_mib(pid: int) -> float:
    """Resident memory that is no file's, in MiB; 0 if the process has ended."""
    return _status_mib(pid, "RssAnon")


def spark_workers() -> list[int]:
    """The Python processes that run tasks for a Spark session of this process, and the daemon that forks them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"pyspark.worker" in (path / "cmdline").read_bytes() and _is_ours(int(path.name)):
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def written_bytes(pid: int) -> int:
    """Bytes the process has written to disk so far: dirtied pages, except those that never had to be written.

    Also works for a process that has ended but was not waited for.
    """
    io = _io(pid)
    return io["write_bytes"] - io["cancelled_write_bytes"]


def read_bytes(pid: int) -> int:
    """Bytes the process has read from disk so far."""
    return _io(pid)["read_bytes"]


def machine_cpu_seconds() -> float:
    """CPU time used so far by all processes of this machine, on all cores."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    return sum(int(ticks) for ticks in (user, nice, system, irq, softirq)) / os.sysconf("SC_CLK_TCK")


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def _io(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}


def _status_mib(pid: int | None, name: str) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0
