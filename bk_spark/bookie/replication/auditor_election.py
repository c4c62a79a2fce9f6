"""The election of the auditor in ZooKeeper. Source: compatibility.md §6.3.

Each candidate creates an ephemeral, sequential vote. The vote with the smallest number is the auditor's. The others
watch the vote before theirs. The auditor proves with its vote that its session lives.
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.bookie.metadata.proven_changes import ATTEMPTS, put
from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.protocol.errors import MetadataFormatError, MetadataUnavailableError, NoNodeError, OutcomeUnknownError
from bk_spark.protocol.metadata.under_replication import UnderReplicationPaths, decode_vote, encode_vote, vote_number
from bk_spark.protocol.metadata.znodes import Znode


@dataclass(frozen=True, slots=True)
class AuditorVote:
    """A candidate's vote.

    Parameters
    ----------
    path
        The znode. It proves that the candidate's session lives.
    number
        The place in the queue.
    bookie_id
        The candidate. None if the content does not say.
    session_id
        The session that owns the vote.
    """

    path: str
    number: int
    bookie_id: str | None
    session_id: int


class AuditorElection:
    """The votes of one cluster. Blocking, for one candidate of a session. Needs :meth:`UnderReplicationStore.prepare`.

    Calls raise MetadataUnavailableError if ZooKeeper does not answer.
    """

    def __init__(self, zk: ZooKeeper, root: str) -> None:
        self.zk = zk
        self.paths = UnderReplicationPaths(root)

    def vote(self, bookie_id: str) -> AuditorVote:
        """Return this session's vote. Create it if there is none."""
        for _ in range(ATTEMPTS):
            mine = next((vote for vote in self.votes() if vote.session_id == self.zk.session_id), None)
            if mine is not None:
                return mine
            try:
                self.zk.create(self.paths.vote_prefix, encode_vote(bookie_id), ephemeral=True, sequence=True)
            except OutcomeUnknownError:
                # If the vote was created, it is listed after this.
                self.zk.sync(self.paths.election)
        raise MetadataUnavailableError(f"no vote could be created below {self.paths.election}")

    def votes(self) -> list[AuditorVote]:
        """Return all votes. The first is the auditor's."""
        names = {name: vote_number(name) for name in self.zk.children(self.paths.election) or ()}
        numbers = {f"{self.paths.election}/{name}": number for name, number in names.items() if number is not None}
        return sorted(
            (
                AuditorVote(path, numbers[path], _candidate(found, path), found.owner_session)
                for path, found in self.zk.get_many(list(numbers)).items()
                if found is not None
            ),
            key=lambda vote: vote.number,
        )

    def watch_vote(self, vote: AuditorVote, watch: WatchCallback) -> bool:
        """Call ``watch`` when the vote changes or goes, or when the connection breaks. Return whether it exists."""
        return self.zk.exists(vote.path, watch) is not None

    def withdraw(self, vote: AuditorVote) -> None:
        """Delete a vote. Safe to repeat."""
        for _ in range(ATTEMPTS):
            try:
                return self.zk.delete(vote.path)
            except NoNodeError:
                return None
            except OutcomeUnknownError:
                continue
        raise MetadataUnavailableError(f"{vote.path} could not be deleted")

    def write_auditor(self, bookie_id: str, *, proof: str) -> None:
        """Write the auditor into the znode of the election, as Apache does. Raises SessionLostError."""
        data = encode_vote(bookie_id)
        put(self.zk, self.paths.election, lambda _: data, proof)

    def auditor(self) -> AuditorVote | None:
        """Return the auditor's vote, or None if there is no auditor."""
        return next(iter(self.votes()), None)


def _candidate(found: Znode, path: str) -> str | None:
    try:
        return decode_vote(found.data, path)
    except MetadataFormatError:
        return None
