"""Metadata service URIs in Apache BookKeeper's syntax.

``zk[+flat|+hierarchical|+longhierarchical|+null]://host:port[;host:port…][/ledgers/root]``

Servers are separated by ``;`` (``,`` is accepted too). ``zk`` and ``zk+null`` use the cluster's LAYOUT. Source:
compatibility.md §3.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError

_URI: Final = re.compile(r"zk(?:\+(?P<layout>[a-z]+))?://(?P<servers>[^/]+)(?P<root>/.*)?")
_PORT: Final = re.compile("[0-9]{1,5}")
#: A name, an IPv4 address, or an IPv6 address in brackets.
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+(?:%[^\s\[\]]+)?\]|[^\s\[\]:@?#%]+")
_LAYOUTS: Final = ("flat", "hierarchical", "longhierarchical")
_DEFAULT_ROOT: Final = "/ledgers"
_DEFAULT_PORT: Final = 2181


@dataclass(frozen=True, slots=True)
class MetadataServiceUri:
    """A parsed URI: ``servers`` as ZooKeeper's connect string, ``root`` without a trailing slash,
    ``layout`` one of ``flat``, ``hierarchical``, ``longhierarchical`` or None for the cluster's own."""

    servers: str
    root: str
    layout: str | None

    @classmethod
    def parse(cls, text: str) -> MetadataServiceUri:
        """Parse a URI. Raises InvalidArgumentError, which says what is wrong. The default port is 2181, the root
        ``/ledgers``."""
        # A variable of the environment that is not set is None.
        match = _URI.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise InvalidArgumentError(
                f"metadataServiceUri {text!r} is not of the form zk+hierarchical://host:port[;host:port]/ledgers"
            )
        layout = match["layout"]
        if layout == "null":
            layout = None
        if layout is not None and layout not in _LAYOUTS:
            raise InvalidArgumentError(
                f"metadataServiceUri {text!r}: ledger manager {layout!r} is unknown; use one of "
                f"{', '.join('zk+' + name for name in _LAYOUTS)}, or plain zk for the cluster's own"
            )
        servers = [_with_port(text, server) for server in re.split("[;,]", match["servers"]) if server]
        if not servers:
            raise InvalidArgumentError(f"metadataServiceUri {text!r} names no server")
        root = (match["root"] or "").rstrip("/") or _DEFAULT_ROOT
        if "//" in root:
            raise InvalidArgumentError(f"metadataServiceUri {text!r}: empty path component in {root!r}")
        return cls(",".join(servers), root, layout)

    def __str__(self) -> str:
        scheme = "zk" if self.layout is None else f"zk+{self.layout}"
        return f"{scheme}://{self.servers.replace(',', ';')}{self.root}"


def _with_port(text: str, server: str) -> str:
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]"):
        host, port = server, str(_DEFAULT_PORT)
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        hint = ": an IPv6 address stands in brackets, as in [::1]:2181" if ":" in host else ""
        raise InvalidArgumentError(f"metadataServiceUri {text!r}: {server!r} is not host:port{hint}")
    try:
        host.encode("idna")
    except UnicodeError:
        raise InvalidArgumentError(f"metadataServiceUri {text!r}: no host can have the name {host!r}") from None
    return f"{host}:{port}"
