"""Brokers of Apache Pulsar on a ZooKeeper and bookies that run already, with Pulsar's own client.

All brokers of a test run are in one JVM, which does what it is told in JSON lines (``java/src``). A broker makes a
cluster's metadata at its first start.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.interop import jvm
from tests.interop.java_client import JavaClient
from tests.interop.maven_build import PULSAR_PROJECT

#: A start, or a stop, of a broker on a busy machine.
_BROKER_TIMEOUT_MS: Final = 240_000
_OPEN: Final = (
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)
#: Little memory and few threads. Nothing is deleted by itself. Ends of ledgers are told at once, and ledgers are short.
SETTINGS: Final = {
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "brokerServicePort": "0",
    "webServicePort": "0",
    "managedLedgerDefaultEnsembleSize": "3",
    "managedLedgerDefaultWriteQuorum": "3",
    "managedLedgerDefaultAckQuorum": "2",
    "transactionCoordinatorEnabled": "true",
    "numTransactionReplayThreadPoolSize": "1",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "loadBalancerEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "defaultNumberOfNamespaceBundles": "1",
    "bookkeeperExplicitLacIntervalInMills": "100",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "numIOThreads": "2",
    "numOrderedExecutorThreads": "2",
    "numHttpServerThreads": "8",
    "numCacheExecutorThreadPoolSize": "2",
    "managedLedgerNumSchedulerThreads": "2",
    "bookkeeperNumberOfChannelsPerBookie": "1",
    "managedLedgerCacheSizeMB": "16",
    "brokerShutdownTimeoutMs": "5000",
}


class PulsarProcess(JavaClient):
    """The JVM of the brokers; a context manager."""

    project: ClassVar[Path] = PULSAR_PROJECT
    main: ClassVar[str] = "org.bkspark.pulsar.Harness"

    def __init__(self, log_path: Path, jvm_options: Sequence[str] = jvm.SMALL_CLIENT) -> None:
        super().__init__(log_path, (*jvm_options, *_OPEN))


class PulsarBroker:
    """One broker and its clients.

    Parameters
    ----------
    process
        Where it runs.
    name
        Its name there.
    store
        ``host:port`` of the ZooKeeper for Pulsar's metadata, perhaps with a path.
    settings
        Settings of the broker beside those of all.
    configuration_store
        The same for the configuration store. Default: ``store``.
    """

    def __init__(
        self,
        process: PulsarProcess,
        name: str,
        store: str,
        settings: Mapping[str, str],
        configuration_store: str | None = None,
    ) -> None:
        self._process = process
        self._name = name
        self._stores = {"store": store, "configuration_store": configuration_store or store}
        self._settings = {**SETTINGS, **settings}

    def init(self) -> None:
        """Make the metadata of a new cluster of Pulsar."""
        ledgers = self._settings.get("bookkeeperMetadataServiceUri", "")
        self.call("init", **self._stores, ledgers=ledgers, timeout_ms=_BROKER_TIMEOUT_MS)

    def start(self, **settings: str) -> None:
        """Start the broker. ``settings`` change those it was made with, for this time."""
        values = {**self._settings, **settings}
        self.call("start", **self._stores, settings=values, timeout_ms=_BROKER_TIMEOUT_MS)

    def stop(self) -> None:
        """Stop the broker in order."""
        self.call("stop", timeout_ms=_BROKER_TIMEOUT_MS)

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Do a command of ``Topics.java``. Raises JavaError, HarnessError."""
        return self._process.call(command, broker=self._name, **arguments)

    def produce(self, topic: str, messages: Sequence[Mapping[str, Any]] = (), **how: Any) -> None:
        """Send messages with one producer: each has ``value`` (bytes, None for a tombstone) and what :func:`message`
        takes. Or, with ``first`` and ``count``, numbered ones. ``how``: batch, compression, chunk_bytes, …"""
        self.call("produce", topic=topic, messages=list(messages), **how)

    def read(self, topic: str, *, typed: bool = False, compacted: bool = False) -> list[dict[str, Any]]:
        """Return everything that a Java reader gets of a topic, or of its compacted view, now."""
        rows: list[dict[str, Any]] = self.call("read", topic=topic, typed=typed, compacted=compacted)["rows"]
        return rows


def message(
    value: bytes | None, *, key_bytes: bytes | None = None, ordering_key: bytes | None = None, **more: Any
) -> dict[str, Any]:
    """Return a message for :meth:`PulsarBroker.produce`. ``more``: key, properties, event_time, deliver_at,
    transaction."""
    found = dict(more)
    if value is not None:
        found["value"] = base64.b64encode(value).decode()
    if key_bytes is not None:
        found["key_bytes"] = base64.b64encode(key_bytes).decode()
    if ordering_key is not None:
        found["ordering_key"] = base64.b64encode(ordering_key).decode()
    return found
