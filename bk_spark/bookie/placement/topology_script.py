"""Racks from an administrator's script (``networkTopologyScriptFileName``), as in Apache's client and Hadoop.

The script gets at most twenty hosts as arguments and writes as many racks to its standard output, separated by white
space (one per line). Racks are cached. If the script fails, takes too long or writes something else, this is logged.
The script is then not called for a minute, and its hosts count as unknown.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from bk_spark.protocol.errors import MetadataUnavailableError

_LOG = logging.getLogger(__name__)
_HOSTS_PER_CALL: Final = 20
_MAX_OUTPUT_BYTES: Final = 64 * 1024
_MAX_REMEMBERED: Final = 10_000
_RETRY_S: Final = 60.0


class TopologyScript:
    """Racks by host. Blocks for at most ``timeout_ms``, for all calls of the script together. Thread-safe."""

    def __init__(self, path: str, timeout_ms: int = 5_000) -> None:
        self._path = path
        self._timeout_s = timeout_ms / 1000
        self._racks: dict[str, str] = {}
        self._not_before = 0.0
        self._lock = threading.Lock()

    def racks(self, hosts: Mapping[str, str]) -> Mapping[str, str]:
        """Return the racks that the script knows, by bookie id. ``hosts`` has the host of each id."""
        with self._lock:
            self._learn(sorted({host for host in hosts.values() if host not in self._racks}))
            return {bookie_id: self._racks[host] for bookie_id, host in hosts.items() if host in self._racks}

    def _learn(self, hosts: Sequence[str]) -> None:
        if not hosts or time.monotonic() < self._not_before:
            return
        if len(self._racks) + len(hosts) > _MAX_REMEMBERED:
            self._racks.clear()
        deadline = time.monotonic() + self._timeout_s
        try:
            for first in range(0, min(len(hosts), _MAX_REMEMBERED), _HOSTS_PER_CALL):
                some = hosts[first : first + _HOSTS_PER_CALL]
                names = self._run(some, deadline).split()
                if len(names) != len(some):
                    raise MetadataUnavailableError(f"it gave {len(names)} racks for {len(some)} hosts")
                for host, name in zip(some, names, strict=True):
                    self._racks[host] = name if name.startswith("/") else "/" + name
        except (MetadataUnavailableError, OSError, ValueError) as error:
            self._not_before = time.monotonic() + _RETRY_S
            _LOG.warning("networkTopologyScriptFileName %s gives no racks: %s", self._path, error)

    def _run(self, hosts: Sequence[str], deadline: float) -> str:
        # A host must not be read as an option.
        if any(host.startswith("-") for host in hosts):
            raise MetadataUnavailableError(f"a host begins with a dash: {hosts}")
        with subprocess.Popen(
            [self._path, *hosts],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                output = _read(process, deadline)
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except BaseException as error:
                # Kill the script and all its child processes.
                os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise MetadataUnavailableError("it takes too long") from None
                raise
        if status != 0:
            raise MetadataUnavailableError(f"it ended with status {status}")
        return output.decode("utf-8")


def _read(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise MetadataUnavailableError("it takes too long")
        part = os.read(process.stdout.fileno(), 8192)
        if not part:
            return bytes(output)
        output += part
        if len(output) > _MAX_OUTPUT_BYTES:
            raise MetadataUnavailableError(f"it wrote more than {_MAX_OUTPUT_BYTES} bytes")
