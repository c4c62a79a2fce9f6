"""Why a fragment could not be repaired, in words for operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bk_spark.protocol.errors import BookKeeperError, EntryUnknownError, NotEnoughBookiesError
from bk_spark.protocol.replication.actions import FragmentProblem
from bk_spark.protocol.replication.fragments import Fragment


def fragment_problem(
    fragment: Fragment, positions: Collection[int], reason: str, unreadable: tuple[int, ...] = ()
) -> FragmentProblem:
    """Return the problem of a fragment whose copies at ``positions`` could not be repaired."""
    bookies = tuple(fragment.ensemble[position] for position in sorted(positions))
    return FragmentProblem(fragment.first_entry_id, fragment.last_entry_id, bookies, reason, unreadable)


def summary(problems: list[FragmentProblem]) -> str:
    """Name the first problems."""
    named = [f"entries {each.first_entry_id} to {each.last_entry_id}: {each.reason}" for each in problems[:3]]
    more = f"; {len(problems) - 3} more fragments" if len(problems) > 3 else ""
    return "; ".join(named) + more


def entry_of(error: BookKeeperError) -> tuple[int, ...]:
    """Return the entry that a recovery could not read, or nothing. The next repair reads it first."""
    known = isinstance(error, EntryUnknownError) and error.entry_id is not None
    return (error.entry_id,) if known and error.entry_id is not None else ()


def why_not_copied(failed: Mapping[str, str], unreadable: Mapping[int, str]) -> str:
    """Name the targets that failed, and the entries that no bookie returned."""
    targets = [f"bookie {bookie_id} takes no copy: {why}" for bookie_id, why in failed.items()]
    return "; ".join([*targets, *(f"entry {entry_id}: {why}" for entry_id, why in unreadable.items())])


def why_no_target(
    error: NotEnoughBookiesError,
    targets: frozenset[str] | None,
    ensemble: Collection[str],
    failed: Collection[str],
) -> str:
    """Return why no bookie can take the copies of a position.

    Parameters
    ----------
    error
        The refusal of the choice.
    targets
        The only bookies that may take copies. None: all.
    ensemble
        The members of the fragment, with targets that were chosen already.
    failed
        Bookies that took no copy.
    """
    if targets is None:
        return error.message
    found = []
    for each in sorted(targets):
        if each in ensemble:
            found.append(f"{each} is in the ensemble already")
        else:
            found.append(f"{each} takes no copy" if each in failed else f"{each} is not writable")
    return f"no bookie that may take copies is left: {'; '.join(found)}"
