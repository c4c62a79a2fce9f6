"""What the operating system says about a process (Linux)."""

from __future__ import annotations

import ipaddress
import os
import select
from pathlib import Path

_LISTEN = "0A"


def wait_until_ended(pid: int, timeout_ms: int) -> bool:
    """True when process ``pid`` (any process, not only a child) has ended, False after the time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_ms / 1000)[0])
    finally:
        os.close(handle)


def listening_addresses(pid: int) -> set[tuple[str, int]]:
    """Address and port of every TCP socket that ``pid`` listens on."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found.add((_address(address), int(port, 16)))
    return found


def _address(text: str) -> str:
    # The kernel prints each 32-bit word in the machine's byte order.
    words = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    return str(ipaddress.ip_address(words))
