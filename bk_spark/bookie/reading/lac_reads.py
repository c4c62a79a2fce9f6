"""Asking a ledger's bookies for its last add confirmed (LAC): drives :class:`bk_spark.protocol.ledger.lac.LacRead`.

Over v3 only, since only READ_LAC tells the *explicit* LAC, by which a writer that is idle publishes its last
entries; the other source is the LAC in the header of the highest entry. There is no falling back to reading
entry -1 over v2: a bookie takes both protocols on one port, so one that refuses a v3 connection would not take
the other; and such an answer would count as a full one while it hides the explicit LAC. Unknown is what it is.
"""

from __future__ import annotations

import asyncio
import logging

from bk_spark.bookie.reading.read_access import LedgerKey, ReadAccess
from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.entries.entry import verify_entry, verify_lac
from bk_spark.protocol.errors import BookKeeperError, DigestMismatchError
from bk_spark.protocol.ledger.lac import LacAnswer, LacRead
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer
from bk_spark.protocol.wire.code_errors import reason_of
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.wire_v3 import response_code

_LOG = logging.getLogger(__name__)


async def read_lac(ledger: LedgerKey, metadata: LedgerMetadata, access: ReadAccess) -> int:
    """The highest LAC that the bookies of the last segment know, once enough of them answered.

    Raises EntryUnknownError where too few do.
    """
    machine = LacRead(ledger.ledger_id, metadata)
    over = asyncio.Event()

    async def ask(bookie_id: str) -> None:
        machine.on_answer(bookie_id, await _ask(ledger, bookie_id, access))
        if machine.over:
            over.set()

    tasks = [asyncio.ensure_future(ask(bookie_id)) for bookie_id in machine.bookie_ids]
    try:
        await over.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if machine.error is not None:
        raise machine.error
    assert machine.result is not None
    return machine.result


async def _ask(ledger: LedgerKey, bookie_id: str, access: ReadAccess) -> LacAnswer:
    try:
        async with asyncio.timeout(access.config.read_timeout_ms / 1000):
            connection = await access.pool_v3.get(bookie_id)
            return understand(ledger, await connection.read_lac(ledger.ledger_id))
    except TimeoutError:
        return LacAnswer(Answer.UNKNOWN, reason="did not answer in time")
    except BookKeeperError as error:
        return LacAnswer(Answer.UNKNOWN, reason=error.message)
    except Exception as error:
        # Whatever it is, it must not look like an answer, nor leave the others waiting.
        _LOG.exception("ledger %d: last add confirmed from bookie %s", ledger.ledger_id, bookie_id)
        return LacAnswer(Answer.UNKNOWN, reason=repr(error))


def understand(ledger: LedgerKey, response: pb.Response) -> LacAnswer:
    """What an answer to READ_LAC says, of which only what has a right digest counts."""
    body = response.readLacResponse
    code = response_code(response, body.status if response.HasField("readLacResponse") else None)
    lac, wrong = NO_ENTRY, ""
    if body.HasField("lacBody"):
        try:
            lac = verify_lac(body.lacBody, ledger.ledger_id, ledger.digest_type, ledger.digest)
        except DigestMismatchError as error:
            wrong = f"explicit LAC: {error.message}"
    if code is Code.OK and body.HasField("lastEntryBody"):
        try:
            last = verify_entry(body.lastEntryBody, ledger.ledger_id, None, ledger.digest_type, ledger.digest)
            lac = max(lac, last.last_add_confirmed)
        except DigestMismatchError as error:
            wrong = f"last entry: {error.message}"
    if wrong:
        return LacAnswer(Answer.UNKNOWN, lac, wrong)
    if code is Code.OK:
        return LacAnswer(Answer.PRESENT, lac)
    if code in (Code.NO_ENTRY, Code.NO_LEDGER):
        return LacAnswer(Answer.ABSENT, lac)
    return LacAnswer(Answer.UNKNOWN, lac, reason_of(code))
