"""Round-robin striping and the arithmetic of quorums. Source: compatibility.md §4.1, §4.7."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bk_spark.protocol.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many bookies a ledger uses. ``ensemble_size >= write_quorum_size >= ack_quorum_size >= 1``.

    Parameters
    ----------
    ensemble_size
        How many bookies hold the ledger.
    write_quorum_size
        How many of them hold each entry.
    ack_quorum_size
        How many of these must have an entry before it counts as acknowledged.

    Raises
    ------
    InvalidArgumentError
        If the sizes are not in this order.
    """

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum_size >= self.ack_quorum_size >= 1:
            raise InvalidArgumentError(
                "quorum sizes must satisfy ensembleSize >= writeQuorumSize >= ackQuorumSize >= 1, got "
                f"ensembleSize={self.ensemble_size}, writeQuorumSize={self.write_quorum_size}, "
                f"ackQuorumSize={self.ack_quorum_size}: {self._remedy()}"
            )

    def _remedy(self) -> str:
        remedies = []
        if self.write_quorum_size > self.ensemble_size:
            remedies.append("lower writeQuorumSize or raise ensembleSize")
        if self.ack_quorum_size > self.write_quorum_size:
            remedies.append("lower ackQuorumSize or raise writeQuorumSize")
        if self.ack_quorum_size < 1:
            remedies.append("raise ackQuorumSize to 1 at least")
        return "; ".join(remedies)

    @property
    def striped(self) -> bool:
        """Whether each bookie of the ensemble holds only some of the entries."""
        return self.ensemble_size != self.write_quorum_size

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """List the bookies that hold an entry.

        Parameters
        ----------
        entry_id
            The entry.

        Returns
        -------
        tuple of int
            Positions in the ensemble, in the order in which readers prefer them.
        """
        size = self.ensemble_size
        return tuple((entry_id + k) % size for k in range(self.write_quorum_size))

    def stores(self, index: int, entry_id: int) -> bool:
        """Return whether a bookie holds an entry.

        Parameters
        ----------
        index
            The bookie's position in the ensemble.
        entry_id
            The entry.

        Returns
        -------
        bool
            Whether it belongs to the entry's write set.
        """
        return (index - entry_id) % self.ensemble_size < self.write_quorum_size

    @property
    def absent_needed(self) -> int:
        """The number of "absent" answers from a write set that prove an entry was never acknowledged: Qw-Qa+1."""
        return self.write_quorum_size - self.ack_quorum_size + 1

    def can_spare(self, failed: Collection[int]) -> bool:
        """Return whether every write set can reach its ack quorum without the ``failed`` ensemble indexes."""
        spare = self.write_quorum_size - self.ack_quorum_size
        return all(
            sum(index in failed for index in self.write_set(start)) <= spare for start in range(self.ensemble_size)
        )


class Answer(enum.Enum):
    """One bookie's answer. Unknown never counts as absent."""

    UNHEARD = "unheard"
    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


def covered(quorum: Quorum, answers: Sequence[Answer]) -> bool:
    """Return whether the silent bookies are too few to acknowledge an entry.

    In every window of Qw neighbouring positions, fewer than Qa bookies may lack a definite answer (present or absent).
    Then no entry can be acknowledged by bookies that this reader did not hear.
    """
    size = quorum.ensemble_size
    silent = [answer in (Answer.UNHEARD, Answer.UNKNOWN) for answer in answers]
    return all(
        sum(silent[(start + k) % size] for k in range(quorum.write_quorum_size)) < quorum.ack_quorum_size
        for start in range(size)
    )
