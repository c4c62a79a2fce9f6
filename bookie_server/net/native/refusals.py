"""Answers requests that come in clear to a bookie that requires TLS. Nothing is looked up, nothing is changed.

The answers are those of Apache's bookie to clients that are not authenticated (compatibility.md §1.9).
"""

from __future__ import annotations

from typing import Final

from bk_spark.protocol.codes import Code, OpV2
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.answer_frames_v3 import response
from bk_spark.protocol.wire.framing import Frames, frame
from bk_spark.protocol.wire.wire_v2 import AddRun, BatchRead, ReadRun
from bk_spark.protocol.wire.wire_v3 import is_v3, parse_request
from bookie_server.net.common.receiving import part
from bookie_server.net.native.answers import Answers

_CODE: Final = Code.UNAUTHORIZED
_FRAMES_PER_TURN: Final = 64


def refuse(frames: Frames, answers: Answers) -> Frames | None:
    """Answer some of ``frames``. Return the rest, for the next turn.

    Raises WireFormatError for what has no such answer; then the connection is closed.
    """
    for i, body in enumerate(part(frames, 0, _FRAMES_PER_TURN)):
        if is_v3(body):
            header = parse_request(body).header
            answers.send(frame(response(header.txnId, header.operation, _CODE).SerializeToString()))
            continue
        for request in wire_v2.parse_requests(part(frames, i, i + 1)):
            match request:
                case AddRun():
                    answers.send(wire_v2.add_answers(request.version, request.ledger_ids, request.entry_ids, _CODE))
                case ReadRun():
                    ids = request.ledger_ids, request.entry_ids
                    answers.send(wire_v2.add_answers(request.version, *ids, _CODE, OpV2.READ))
                case BatchRead():
                    answers.send(wire_v2.batch_read_answer(request, _CODE))
                case _:
                    raise WireFormatError("a request in clear, and tlsRequired=true")
    return part(frames, _FRAMES_PER_TURN, len(frames)) if len(frames) > _FRAMES_PER_TURN else None
