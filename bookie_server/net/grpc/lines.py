"""Several servers of gRPC on one port, each with a line of its own for callers that come.

gRPC takes the connections and the calls of a server one after the other, in the order in which they came, and Python
cannot let others go first. So whoever begins thousands of calls, or takes all places of connections, would keep
everybody out. Here the kernel chooses the server by the caller's address: callers of one address wait for each other,
and for those few whose addresses have the same line by chance. Which ones do is another secret of each start.

The kernel asks a program of classic BPF that belongs to the group of all sockets that listen on the port with
SO_REUSEPORT. Its data begins behind the header of TCP; addresses are found from the beginning of the header of IP.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import secrets
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import Final

_LOG: Final = logging.getLogger(__name__)
#: Of Linux; Python has no name for it.
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
#: A line for fewer connections would keep honest callers of one address out.
_LEAST_CONNECTIONS: Final = 128

# Instructions of classic BPF: what, and the sizes and operands of that (linux/bpf_common.h). Each has two jumps, for
# comparisons, and a number.
_INSTRUCTION: Final = struct.Struct("HBBI")
_LOAD_BYTE: Final = 0x30
_LOAD_WORD: Final = 0x20
_AND: Final = 0x54
_XOR: Final = 0xA4
_XOR_X: Final = 0xAC
_MULTIPLY: Final = 0x24
_SHIFT_RIGHT: Final = 0x74
_JUMP: Final = 0x05
_JUMP_IF_EQUAL: Final = 0x15
_TO_X: Final = 0x07
_RETURN: Final = 0x16
#: Offsets from here on count from the header of IP.
_IP: Final = 0xFFF00000
_IPV4_SOURCE: Final = _IP + 12
#: The network's half of an address of IPv6. Whoever has one address has the other half for himself.
_IPV6_NETWORK: Final = (_IP + 8, _IP + 12)


def line_count(most: int, connections: int) -> int:
    """Return how many lines there should be, at most ``most``, for so many connections in all. One, and a line of the
    log that says why, if the kernel does not choose by address."""
    count = max(1, min(most, connections // _LEAST_CONNECTIONS))
    if count > 1:
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                _attach([probe], count)
            except OSError as error:
                _LOG.warning("callers of gRPC have one line, since the kernel does not choose by address: %s", error)
                return 1
    return count


def line_program(lines: int, secret: tuple[int, int, int]) -> bytes:
    """Return the program that chooses one of ``lines`` by the address of the caller.

    ``secret`` has numbers of 32 bits, of which the first two are odd.
    """
    spread, spread_network, salt = secret
    program = (
        (_LOAD_BYTE, 0, 0, _IP),
        (_AND, 0, 0, 0xF0),
        (_JUMP_IF_EQUAL, 0, 2, 0x40),
        (_LOAD_WORD, 0, 0, _IPV4_SOURCE),
        (_JUMP, 0, 0, 5),
        (_LOAD_WORD, 0, 0, _IPV6_NETWORK[0]),
        (_MULTIPLY, 0, 0, spread_network),
        (_TO_X, 0, 0, 0),
        (_LOAD_WORD, 0, 0, _IPV6_NETWORK[1]),
        (_XOR_X, 0, 0, 0),
        # The highest bits depend on all others.
        (_XOR, 0, 0, salt),
        (_MULTIPLY, 0, 0, spread),
        (_SHIFT_RIGHT, 0, 0, 16),
        (_MULTIPLY, 0, 0, lines),
        (_SHIFT_RIGHT, 0, 0, 16),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


def choose_by_address(port: int, lines: int) -> None:
    """Let the kernel choose by address among ``lines`` sockets that this process lets listen on ``port``: in the order
    in which they begin to. The first one does already. Raises OSError."""
    with contextlib.ExitStack() as stack:
        _attach([stack.enter_context(found) for found in _listeners(port)], lines)


def _attach(listeners: Iterable[socket.socket], lines: int) -> None:
    secret = (secrets.randbits(32) | 1, secrets.randbits(32) | 1, secrets.randbits(32))
    program = line_program(lines, secret)
    instructions = ctypes.create_string_buffer(program, len(program))
    asked = struct.pack("HxxxxxxQ", len(program) // _INSTRUCTION.size, ctypes.addressof(instructions))
    for listener in listeners:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, asked)


def check_free(host: str, port: int) -> None:
    """Raise OSError if somebody listens on ``port``, also if he would share it."""
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise


def _listeners(port: int) -> Iterator[socket.socket]:
    """Give the sockets of this process that listen on ``port`` and may share it. Each is a duplicate."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed meanwhile
        if _listens(found, port):
            yield found
        else:
            found.close()


def _listens(found: socket.socket, port: int) -> bool:
    try:
        return (
            found.family in (socket.AF_INET, socket.AF_INET6)
            and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0
            and found.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) != 0
            and found.getsockname()[1] == port
        )
    except OSError:
        return False
