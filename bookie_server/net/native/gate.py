"""The gate of a connection whose requests are not obeyed, or not yet: it came in clear and TLS is required, its
certificate has no allowed role, or it has not logged in. Nothing is looked up for it, and nothing is changed.

The answers are those of Apache's bookie to clients that are not authenticated (compatibility.md §1.9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bk_spark.protocol.codes import Code, OpV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import UnauthorizedError, WireFormatError
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.auth_frames import AuthMessage, auth_answer_v2, auth_answer_v3, auth_of
from bk_spark.protocol.wire.framing import Frames, frame, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.answer_frames_v3 import response
from bk_spark.protocol.wire.v3.wire_v3 import parse_request
from bk_spark.protocol.wire.wire_v2 import AddRun, BatchRead, ReadRun
from bookie_server.net.common.access.front_access import ConnectionAccess
from bookie_server.net.common.access.rights import ALL
from bookie_server.net.native.answers import Answers

_CODE: Final = Code.UNAUTHORIZED
_FRAMES_PER_TURN: Final = 64


class Gate:
    """Stands before the handlers of one connection's requests.

    Parameters
    ----------
    answers
        Those of the connection.
    access
        What is known of the peer. None: it will never be allowed anything.
    refused
        Called when a request is refused.
    end_login
        Called when a login has failed, with what answers it and closes the connection. To be called after a while:
        whoever tries again and again costs little then.
    """

    def __init__(
        self,
        answers: Answers,
        access: ConnectionAccess | None,
        refused: Callable[[], None],
        end_login: Callable[[Callable[[], None]], None],
    ) -> None:
        self._answers = answers
        self._access = access
        self._refused = refused
        self._end_login = end_login
        #: Whether the peer has sent a v2 frame.
        self.is_v2 = False

    @property
    def is_open(self) -> bool:
        """Whether the requests that follow may be obeyed."""
        return self._access is not None and self._access.is_allowed

    @property
    def access(self) -> ConnectionAccess | None:
        """The access that requests still have to be checked against after the gate. None if all rights are given."""
        return None if self._access is None or self._access.rights == ALL else self._access

    @property
    def awaits_login(self) -> bool:
        """Whether the peer may still log in."""
        return self._access is not None and self._access.awaits_login

    def give_up(self) -> None:
        """The peer took too long to log in."""
        if self._access is not None:
            self._access.give_up()

    def handle(self, frames: Frames) -> Frames | None:
        """Answer some of ``frames``. Return the rest, for the next turn.

        Raises WireFormatError for what has no such answer; then the connection is closed.
        """
        for i, body in enumerate(frames.part(0, _FRAMES_PER_TURN)):
            if not is_v3(body):
                self.is_v2 = True
            elif self.is_v2:
                raise WireFormatError("a v3 frame on a connection that speaks v2")
            message = auth_of(body) if self.awaits_login else None
            if message is None:
                self._refuse(frames.part(i, i + 1), body)
                continue
            if not self._log_in(body, message):
                return None
            if self.is_open:
                return frames.part(i + 1, len(frames)) if i + 1 < len(frames) else None
        return frames.part(_FRAMES_PER_TURN, len(frames)) if len(frames) > _FRAMES_PER_TURN else None

    def _log_in(self, body: Buffer, message: AuthMessage) -> bool:
        """Answer a message of a login. Return False if the connection ends."""
        access = self._access
        assert access is not None
        header = parse_request(body).header if is_v3(body) else None
        if not access.knows(message.plugin):
            if header is None:
                raise WireFormatError("a login of a kind that this bookie does not know")
            self._answer(header, _CODE)
            return True
        try:
            answer = AuthMessage(message.plugin, access.log_in(message.payload))
        except UnauthorizedError:

            def refuse() -> None:
                if header is not None:  # over v2 there is no such answer
                    self._answer(header, _CODE)

            self._end_login(refuse)
            return False
        self._answers.send(auth_answer_v2(answer) if header is None else auth_answer_v3(header, answer))
        return True

    def _refuse(self, frames: Frames, body: Buffer) -> None:
        answers = self._answers
        self._refused()
        if is_v3(body):
            header = parse_request(body).header
            # Java's client takes any other answer to START_TLS for a bookie that cannot be reached.
            no_tls = header.operation == pb.START_TLS and self._access is not None
            self._answer(header, Code.BAD_REQUEST if no_tls else _CODE)
            return
        for request in wire_v2.parse_requests(frames):
            match request:
                case AddRun():
                    answers.send(wire_v2.add_answers(request.version, request.ledger_ids, request.entry_ids, _CODE))
                case ReadRun():
                    ids = request.ledger_ids, request.entry_ids
                    answers.send(wire_v2.add_answers(request.version, *ids, _CODE, OpV2.READ))
                case BatchRead():
                    answers.send(wire_v2.batch_read_answer(request, _CODE))
                case _:
                    raise WireFormatError("a request that is not obeyed, and has no answer")

    def _answer(self, header: pb.BKPacketHeader, code: Code) -> None:
        self._answers.send(frame(response(header.txnId, header.operation, code).SerializeToString()))
