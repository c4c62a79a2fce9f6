"""Registers ledgers with a log: the operations, and the znodes that must exist first."""

from __future__ import annotations

from bk_spark.log.core.append import read_head
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings
from bk_spark.log.core.steps import LedgerRegistrar
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import LedgerRegistration, encode_registration
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, TransactionOp


def registrar(paths: LogPaths, run_path: str) -> LedgerRegistrar:
    """Return the operations that register a ledger under ``run_path``, which must exist."""
    data = encode_registration(LedgerRegistration())

    def operations(ledger_id: int) -> tuple[TransactionOp, ...]:
        return CheckOp(paths.identity, -1), CreateOp(f"{run_path}/{ledger_id}", data)

    return operations


class MakeZnodes:
    """The change that creates those of the znodes ``names`` that are missing, as empty znodes."""

    def __init__(self, paths: LogPaths, *names: str) -> None:
        self.paths = paths
        self._names = names

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"creation of znodes of log {self.paths.name}"

    @property
    def again(self) -> str:
        """A repetition creates what is still missing."""
        return "create them again: nothing is created twice"

    def decide(self, readings: Readings, now_ms: int, maybe: bool | None) -> AlreadyDone[bool] | Plan[bool]:
        """Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
        read_head(readings, self.paths)
        readings.require(*self._names)
        missing = tuple(CreateOp(path) for path in self._names if readings.get(path) is None)
        return Plan((), (CheckOp(self.paths.identity, -1), *missing), True) if missing else AlreadyDone(True)
