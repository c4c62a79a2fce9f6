"""The switches of replication in ZooKeeper: disabled or not, the delay of the auditor, and the times of its checks.

Blocking and thread-safe. The znodes are Apache's (:mod:`bk_spark.protocol.metadata.under_replication`). Source:
compatibility.md §6.1, §6.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bk_spark.bookie.metadata.proven_changes import ATTEMPTS, put
from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.protocol.errors import MetadataUnavailableError, NodeExistsError, NoNodeError, OutcomeUnknownError
from bk_spark.protocol.metadata.under_replication import (
    PeriodicCheck,
    UnderReplicationPaths,
    decode_check_time,
    decode_recovery_delay,
    encode_check_time,
    encode_recovery_delay,
)


@dataclass(frozen=True, slots=True)
class RecoveryDelay:
    """``lostBookieRecoveryDelay``. A new ``version`` with the same seconds asks the auditor for an audit now."""

    seconds: int
    version: int


class ReplicationSwitches:
    """The switches of one cluster. Calls raise MetadataUnavailableError if ZooKeeper does not answer."""

    def __init__(self, zk: ZooKeeper, root: str) -> None:
        self.zk = zk
        self.paths = UnderReplicationPaths(root)

    def is_disabled(self, watch: WatchCallback | None = None) -> bool:
        """Return whether replication is disabled. ``watch`` is called when that changes."""
        return self.zk.exists(self.paths.disable, watch) is not None

    def disable(self) -> bool:
        """Disable replication. Return False if it was disabled already."""
        return self._switch(lambda: self.zk.create(self.paths.disable, make_parents=True))

    def enable(self) -> bool:
        """Enable replication. Return False if it was enabled already."""
        return self._switch(lambda: self.zk.delete(self.paths.disable))

    def recovery_delay(self, watch: WatchCallback | None = None) -> RecoveryDelay | None:
        """Return how long the auditor waits before it marks the ledgers of one lost bookie. None if it was never set.

        ``watch`` is called when the delay is set, also to the same value. Raises MetadataFormatError.
        """
        path = self.paths.recovery_delay
        # A read of a missing znode sets no watch.
        found = self.zk.exists(path, watch) and self.zk.get(path)
        return None if found is None else RecoveryDelay(decode_recovery_delay(found.data, path), found.version)

    def init_recovery_delay(self, delay_s: int) -> None:
        """Set the delay, unless it is set already. Raises InvalidArgumentError."""
        data = encode_recovery_delay(delay_s)
        self._switch(lambda: self.zk.create(self.paths.recovery_delay, data, make_parents=True))

    def set_recovery_delay(self, delay_s: int) -> None:
        """Set the delay. If it has this value already, the auditor audits at once. Raises InvalidArgumentError."""
        data = encode_recovery_delay(delay_s)
        put(self.zk, self.paths.recovery_delay, lambda _: data)

    def trigger_audit(self) -> None:
        """Ask the auditor for an audit now, by setting the delay to the value that it has."""
        put(self.zk, self.paths.recovery_delay, lambda found: encode_recovery_delay(0) if found is None else found.data)

    def check_time_ms(self, check: PeriodicCheck) -> int | None:
        """Return when a check was last done (Unix time), or None. Raises MetadataFormatError."""
        path = self.paths.check_time(check)
        found = self.zk.get(path)
        return None if found is None else decode_check_time(check, found.data, path)

    def set_check_time_ms(self, check: PeriodicCheck, time_ms: int, *, proof: str | None = None) -> None:
        """Store when a check was last done. Raises SessionLostError if ``proof`` does not exist."""
        data = encode_check_time(check, time_ms)
        put(self.zk, self.paths.check_time(check), lambda _: data, proof)

    def _switch(self, change: Callable[[], object]) -> bool:
        sent = False
        for _ in range(ATTEMPTS):
            try:
                change()
                return True
            except (NodeExistsError, NoNodeError):
                # After a lost reply, this call may have done it.
                return sent
            except OutcomeUnknownError:
                sent = True
        raise MetadataUnavailableError(f"the switches below {self.paths.base} could not be changed")
