"""Registering ledgers with a log."""

from __future__ import annotations

from bk_spark.bookie.zookeeper import CheckOp, CreateOp, TransactionOp
from bk_spark.log.formats import Registration, encode_registration
from bk_spark.log.names import LogPaths
from bk_spark.log.steps import LedgerRegistrar


def registrar(paths: LogPaths, run_path: str) -> LedgerRegistrar:
    """Operations that register a ledger under ``run_path``, which exists."""
    data = encode_registration(Registration())

    def operations(ledger_id: int) -> tuple[TransactionOp, ...]:
        return CheckOp(paths.identity, -1), CreateOp(f"{run_path}/{ledger_id}", data)

    return operations
