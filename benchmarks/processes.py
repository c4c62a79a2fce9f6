"""What the operating system says of a process (Linux)."""

from __future__ import annotations

import os
from pathlib import Path


def resident_mib(pid: int | None) -> float:
    """Resident memory in MiB; 0 where the process is gone."""
    return _status_mib(pid, "VmRSS")


def peak_resident_mib(pid: int | None) -> float:
    """Highest resident memory so far, in MiB; 0 where the process is gone."""
    return _status_mib(pid, "VmHWM")


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_seconds() -> float:
    """CPU time that all processes of this machine used so far, on all cores."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    return sum(int(ticks) for ticks in (user, nice, system, irq, softirq)) / os.sysconf("SC_CLK_TCK")


def _status_mib(pid: int | None, name: str) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0.0
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0
