"""Asking a ledger's bookies for its last add confirmed (LAC). Source: compatibility facts §1.8, §4.7.

Over v3, since only READ_LAC tells the *explicit* LAC, by which a writer that is idle publishes its last
entries; the other source is the LAC in the header of the highest entry.
"""

from __future__ import annotations

import asyncio
import logging

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection_v3 import BookieConnectionV3
from bk_spark.bookie.pool import ConnectionPool
from bk_spark.protocol.codes import NO_ENTRY, Code, DigestType
from bk_spark.protocol.digest import DigestFunction
from bk_spark.protocol.entry import verify_entry, verify_lac
from bk_spark.protocol.errors import BookKeeperError, EntryUnknownError
from bk_spark.protocol.ledger_metadata import LedgerMetadata
from bk_spark.protocol.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.quorum import Answer, covered
from bk_spark.protocol.wire_v3 import response_code

_LOG = logging.getLogger(__name__)


class LacReader:
    """Reads the LAC of one ledger."""

    def __init__(
        self,
        ledger_id: int,
        digest_type: DigestType,
        digest: DigestFunction,
        pool: ConnectionPool[BookieConnectionV3],
        config: ClientConfig,
    ) -> None:
        self._ledger_id = ledger_id
        self._digest_type = digest_type
        self._digest = digest
        self._pool = pool
        self._config = config

    async def read(self, metadata: LedgerMetadata) -> int:
        """The highest LAC that the bookies of the last segment know, once enough of them answered.

        Raises EntryUnknownError where too few do.
        """
        segment = metadata.last_segment
        answers = await asyncio.gather(*(self._ask(bookie) for bookie in segment.ensemble))
        if not covered(metadata.quorum, [answer for answer, _ in answers]):
            raise EntryUnknownError("too few bookies answered for the last add confirmed", ledger_id=self._ledger_id)
        return max(segment.first_entry_id - 1, *(lac for _, lac in answers))

    async def _ask(self, bookie_id: str) -> tuple[Answer, int]:
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1000):
                connection = await self._pool.get(bookie_id)
                return self._understand(await connection.read_lac(self._ledger_id))
        except (BookKeeperError, TimeoutError) as error:
            _LOG.warning("ledger %d: no LAC from bookie %s: %s", self._ledger_id, bookie_id, error)
            return Answer.UNKNOWN, NO_ENTRY

    def _understand(self, response: pb.Response) -> tuple[Answer, int]:
        body = response.readLacResponse
        code = response_code(response, body.status if response.HasField("readLacResponse") else None)
        lac = NO_ENTRY
        if body.HasField("lacBody"):
            lac = verify_lac(body.lacBody, self._ledger_id, self._digest_type, self._digest)
        if code is Code.OK and body.HasField("lastEntryBody"):
            last = verify_entry(body.lastEntryBody, self._ledger_id, None, self._digest_type, self._digest)
            lac = max(lac, last.last_add_confirmed)
        if code is Code.OK:
            return Answer.PRESENT, lac
        if code in (Code.NO_ENTRY, Code.NO_LEDGER):
            return Answer.ABSENT, lac
        # Apache's bookie answers EIO, with the explicit LAC, where it holds no entry of the ledger yet: the LAC
        # counts, the answer does not.
        return Answer.UNKNOWN, lac
