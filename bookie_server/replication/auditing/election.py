"""The election of the auditor, as Apache's (compatibility.md §6.3).

Each candidate has a vote, an ephemeral sequential znode. The lowest number wins. Each other candidate watches the vote
before its own. A vote of this session is used again, so a lost reply leaves no second vote that would block others.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.machine import StartTimer
from bookie_server.replication.actions import CreateVote, ReadVotes, VotesRead, WatchVote, WithdrawVote, WriteAuditor

RETRY_PAUSE_MS: Final = 1_000

ElectionAction = ReadVotes | CreateVote | WithdrawVote | WatchVote | WriteAuditor | StartTimer


def election_steps() -> Generator[ElectionAction, Any, str]:
    """Return the path of this session's vote when it has won.

    The session's end is an error that the runner reports. It ends the election.
    """
    while True:
        try:
            won = yield from _vote()
        except MetadataUnavailableError:
            yield StartTimer("election", RETRY_PAUSE_MS)
        else:
            if won is not None:
                return won


def _vote() -> Generator[ElectionAction, Any, str | None]:
    read: VotesRead = yield ReadVotes()
    votes = sorted(read.votes, key=lambda vote: vote.number)
    mine = [vote for vote in votes if vote.mine]
    if not mine:
        # If the reply is lost, the next read shows whether there is a vote.
        yield CreateVote()
        return None
    for second in mine[1:]:
        yield WithdrawVote(second.path)
    before = [vote for vote in votes if vote.number < mine[0].number]
    if before:
        yield WatchVote(before[-1].path)
        return None
    yield WriteAuditor()
    return mine[0].path
