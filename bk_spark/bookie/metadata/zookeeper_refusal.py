"""Whether ZooKeeper's servers take connections from this host at all.

A server that has as many connections from one host as ``maxClientCnxns`` allows accepts another one and closes it at
once, before anything was asked. Other servers wait for the client to speak first.
"""

from __future__ import annotations

import socket
from typing import Final

_CONNECT_TIMEOUT_S: Final = 1.0
#: A server that closes does so at once.
_CLOSE_TIMEOUT_S: Final = 0.5


def refusal(servers: str) -> str | None:
    """Why none of ``servers`` (a connect string) takes a connection, where that is the limit of one host; else None.
    Takes a second or so for each."""
    refused = False
    for server in servers.partition("/")[0].split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S) as connection:
                connection.settimeout(_CLOSE_TIMEOUT_S)
                if connection.recv(1):
                    return None
                refused = True
        except ConnectionResetError:
            refused = True
        except TimeoutError:
            # It waits for a question, or does not answer at all.
            return None
        except (OSError, ValueError):
            continue
    if not refused:
        return None
    return (
        f"ZooKeeper at {servers} closes new connections of this host at once: it has reached maxClientCnxns, the most "
        "connections from one host (60 as ZooKeeper is shipped). Raise it in ZooKeeper's zoo.cfg (0: no limit), or run "
        "fewer clients, Spark tasks and queries among them, on this host at once"
    )
