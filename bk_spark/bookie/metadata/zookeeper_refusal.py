"""Checks whether ZooKeeper's servers refuse connections from this host.

A server with ``maxClientCnxns`` connections from one host accepts another one and closes it at once, before any
request. Other servers wait for the client's first bytes.
"""

from __future__ import annotations

import socket
from typing import Final

_CONNECT_TIMEOUT_S: Final = 1.0
#: A server that refuses closes at once, but its host may be busy.
_CLOSE_TIMEOUT_S: Final = 0.5


def refusal(servers: str) -> str | None:
    """Return an error text if none of ``servers`` (a connect string) accepts a connection because of the limit per
    host, else None. Takes at most 1.5 seconds for each server."""
    refused = False
    for server in servers.partition("/")[0].split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S) as connection:
                connection.settimeout(_CLOSE_TIMEOUT_S)
                if connection.recv(1):
                    return None
                refused = True
        except (ConnectionResetError, BrokenPipeError):
            # ZooKeeper ends its direction of the connection, and then resets it. Whichever came last is the error.
            refused = True
        except TimeoutError:
            # The server waits for a request, or does not answer at all.
            return None
        except (OSError, ValueError):
            continue
    if not refused:
        return None
    return (
        f"ZooKeeper at {servers} closes new connections of this host at once: it has reached maxClientCnxns, the "
        "limit of connections from one host (60 by default). Raise it in ZooKeeper's zoo.cfg (0: no limit), or run "
        "fewer clients, which include Spark tasks and queries, on this host at once"
    )
