"""Describes what happened, for people who read a failing history."""

from __future__ import annotations

from bk_spark.log.core.steps import (
    Closed,
    CloseLedger,
    Conflict,
    Created,
    CreateLedger,
    Done,
    EntryRead,
    Failed,
    Found,
    ListChildren,
    Listed,
    OutcomeUnknown,
    Pause,
    Read,
    ReadEntry,
    ReadTimer,
    RecoverLedger,
    ReleaseLock,
    Sync,
    TakeLock,
    TimerRead,
    Transact,
    Unavailable,
    WriteLedger,
)
from bk_spark.log.core.tail.writer_actions import Acknowledged, FlushLedger, SendEntries, Sent
from bk_spark.log.formats.page import MAX_PAGE_BYTES, decode_page
from bk_spark.log.formats.znodes import (
    decode_appended,
    decode_application,
    decode_head,
    decode_maintenance,
    decode_owner,
    decode_policy,
    decode_registration,
)
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import decode
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, TransactionOp, Znode
from tests.simulation.logs.zookeeper import Look

_VERBS = {CreateOp: "make", SetOp: "set", DeleteOp: "delete", CheckOp: "check"}


def told(what: object, how: object) -> str:
    """One line (several for a change of ZooKeeper) about an action and its event."""
    if what == "changes":
        assert isinstance(how, dict)
        return "; ".join(f"{short(path)} {_change(path, *znodes)}" for path, znodes in how.items())
    return f"{_action(what)} -> {_event(how)}" if how != "" else _action(what)


def short(path: str) -> str:
    """The path without the root and the log's name; long ids are shortened."""
    parts = path.removeprefix("/logs/").split("/")
    return "/".join(part if len(part) < 30 else f"{part[:9]}…" for part in (parts[1:] or parts))


def _change(path: str, before: Znode | None, after: Znode | None) -> str:
    if after is None:
        return "deleted"
    text = content(path, after.data)
    return f"made{text and ': '}{text}" if before is None else f"v{after.version}: {text}"


def content(path: str, data: bytes) -> str:
    """A znode's content."""
    parts = path.split("/")
    match parts[1:]:
        case ["logs", _]:
            return str(decode_head(data, path)).removeprefix("Head")
        case ["logs", _, "pages", number]:
            assert len(data) <= MAX_PAGE_BYTES * 600
            log_id = data[4:20].hex()
            log_id = "-".join((log_id[:8], log_id[8:12], log_id[12:16], log_id[16:20], log_id[20:]))
            page = decode_page(data, path, log_id=log_id, number=int(number))
            return " ".join(
                f"{s.base_offset}={s.ledger_id}:{s.first_entry}-{'open' if s.last_entry is None else s.last_entry}"
                for s in page.table
            )
        case ["logs", _, "apps", _]:
            app = decode_application(data, path)
            return f"batch {app.batch_id} of {app.run}, retired {app.retired_runs}, in use {dict(app.in_use)}"
        case ["logs", _, "ledgers", _, _, _]:
            return str(decode_registration(data, path)).removeprefix("LedgerRegistration")
        case ["logs", _, "appended", _]:
            return str(decode_appended(data, path))
        case ["logs", _, "owner"]:
            return str(decode_owner(data, path))
        case ["logs", _, "policy"]:
            return str(decode_policy(data, path))
        case ["logs", _, "maintenance"]:
            return f"begun {decode_maintenance(data, path).hex()}"
        case ["ledgers", _]:
            metadata = decode(data)
            return f"{metadata.state.name} {metadata.last_entry_id}"
    return ""


def _operation(op: TransactionOp) -> str:
    version = "" if isinstance(op, CreateOp) or op.version < 0 else f" v{op.version}"
    return f"{_VERBS[type(op)]} {short(op.path)}{version}"


def _action(what: object) -> str:
    match what:
        case Sync():
            return "sync"
        case Read(paths) | Look(paths):
            return f"read {', '.join(map(short, paths))}"
        case ListChildren(path):
            return f"list {short(path)}"
        case Transact(operations):
            return f"transaction [{'; '.join(map(_operation, operations))}]"
        case TakeLock() | ReleaseLock() | ReadTimer() | Pause() | CreateLedger():
            return type(what).__name__
        case WriteLedger(_, entries):
            return f"write a ledger of {len(entries)} entries"
        case CloseLedger(ledger_id):
            return f"close {ledger_id}"
        case RecoverLedger(ledger_id):
            return f"recover {ledger_id}"
        case ReadEntry(ledger_id, entry_id):
            return f"read {ledger_id}:{entry_id}"
        case SendEntries(ledger_id, payloads):
            return f"send {len(payloads)} to {ledger_id}"
        case FlushLedger(ledger_id):
            return f"drain {ledger_id}"
    return str(what)


def _event(how: object) -> str:
    match how:
        case Found(znodes):
            return ", ".join("none" if znode is None else f"v{znode.version}" for znode in znodes.values())
        case Listed(names):
            return str(names)
        case Conflict(reason) | OutcomeUnknown(reason) | Unavailable(reason):
            return f"{type(how).__name__}: {reason}"
        case Done():
            return "done"
        case TimerRead(elapsed_ms):
            return f"{elapsed_ms} ms"
        case Created(ledger_id):
            return f"ledger {ledger_id}"
        case Closed(ledger_id, last_entry):
            return f"{ledger_id} closed at {last_entry}"
        case EntryRead(payload):
            return f"{len(payload)} bytes"
        case Sent(last_entry):
            return f"sent to entry {last_entry}"
        case Acknowledged(last_entry):
            return f"acknowledged to {last_entry}"
        case Failed(error):
            return f"{type(error).__name__}"
        case BookKeeperError():
            return f"{type(how).__name__}: {how}"
    return str(how)
