"""The address that a bookie advertises, and the address it listens on (compatibility.md §3.4, §5.15)."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.metadata.registration import is_bookie_id
from bookie_server.config.conf_file import ConfFile

_SIOCGIFADDR: Final = 0x8915


@dataclass(frozen=True, slots=True)
class BookieAddresses:
    """How others name and reach the bookie, and the address of its sockets (``0.0.0.0``: all interfaces)."""

    bookie_id: str
    advertised_host: str
    listen_host: str


def find_addresses(conf: ConfFile, port: int) -> BookieAddresses:
    """Determine both from ``bookieId``, ``advertisedAddress``, ``listeningInterface``, ``useHostNameAsBookieID`` and
    ``allowLoopback``. Raises InvalidArgumentError if they give no address that others can reach."""
    host = _advertised_host(conf)
    bookie_id = conf.text("bookieId") or f"{host}:{port}"
    if not is_bookie_id(bookie_id):
        raise conf.error("bookieId", f"{bookie_id!r} is not a bookie id: use letters, digits and : . _ -")
    interface = conf.text("listeningInterface")
    return BookieAddresses(bookie_id, host, _interface_address(conf, interface) if interface else "0.0.0.0")


def _advertised_host(conf: ConfFile) -> str:
    host = conf.text("advertisedAddress")
    if not host:
        interface = conf.text("listeningInterface")
        if interface:
            host = _interface_address(conf, interface)
        elif conf.flag("useHostNameAsBookieID", False):
            host = socket.getfqdn()
        else:
            try:
                host = socket.gethostbyname(socket.gethostname())
            except OSError as error:
                raise conf.error("advertisedAddress", "is missing and this host's name does not resolve") from error
    try:
        loopback = ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError) as error:  # ValueError: no host can have that name
        raise conf.error("advertisedAddress", f"{host!r} does not resolve to an IPv4 address") from error
    if loopback and not conf.flag("allowLoopback", False):
        raise conf.error(
            "advertisedAddress",
            f"{host!r} is a loopback address that other hosts cannot reach; set another, or allowLoopback=true",
        )
    return host


def _interface_address(conf: ConfFile, interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            raise conf.error("listeningInterface", f"{interface!r} has no IPv4 address") from error
    return socket.inet_ntoa(answer[20:24])
