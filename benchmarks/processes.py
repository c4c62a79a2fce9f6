"""What the operating system says of a process (Linux)."""

from __future__ import annotations

from pathlib import Path


def resident_mib(pid: int | None) -> float:
    """Resident memory in MiB; 0 where the process is gone."""
    return _status_mib(pid, "VmRSS")


def peak_resident_mib(pid: int | None) -> float:
    """Highest resident memory so far, in MiB; 0 where the process is gone."""
    return _status_mib(pid, "VmHWM")


def _status_mib(pid: int | None, name: str) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0.0
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0
