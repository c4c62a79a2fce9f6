"""What the operating system says about a process (Linux)."""

from __future__ import annotations

import ipaddress
import os
import select
from pathlib import Path

_LISTEN = "0A"


def wait_until_ended(pid: int, timeout_ms: int) -> bool:
    """Wait until process ``pid`` (any process, not only a child) has ended; False after the time limit."""
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
    inodes = _socket_inodes(pid)
    found = set()
    for table in ("tcp", "tcp6"):
        # Of all processes in the same network namespace, and of connections that have ended.
        for line in Path(f"/proc/{pid}/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                found.add(_endpoint(fields[1]))
    return found


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    return inodes


def _endpoint(text: str) -> tuple[str, int]:
    # The kernel prints each 32-bit word in the machine's byte order.
    address, _, port = text.partition(":")
    words = b"".join(bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
    found = ipaddress.ip_address(words)
    # gRPC listens on addresses of IPv4 by a socket of IPv6.
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found), int(port, 16)
