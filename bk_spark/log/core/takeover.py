"""A commit and its follow-up: the ledgers of the runs that it took over from are fenced and closed.

After that, executors of a zombie driver can append nothing more. The log is correct without it, because a retired run
commits nothing. An error here does not fail the commit. The reaper closes what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bk_spark.log.core.changes import SeenTail, change_steps
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.plan import CommitResult
from bk_spark.log.core.reading import children_steps
from bk_spark.log.core.steps import Failed, Recovered, RecoverLedgers, Steps
from bk_spark.log.formats.message import CommitRequest
from bk_spark.log.formats.names import LogPaths, ledger_ids_of

#: How long a commit waits for the ledgers of a run that it retired.
TAKEOVER_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit's ``result``, and the ``problems`` with closing the ledgers of retired runs."""

    result: CommitResult
    problems: tuple[str, ...]


def commit_steps(
    paths: LogPaths, request: CommitRequest, now_ms: Callable[[], int], seen: SeenTail | None = None
) -> Steps[Committed]:
    """Commit the batch, then take over from the runs that it retired. ``seen``: see
    :func:`bk_spark.log.core.changes.change_steps`.

    Raises the errors of :meth:`bk_spark.log.core.commit.BatchCommit.decide` and
    :func:`bk_spark.log.core.changes.change_steps`. Nothing after the commit raises.
    """
    result = yield from change_steps(BatchCommit(paths, request), now_ms, seen)
    problems: list[str] = []
    for run in result.retired_runs:
        try:
            problem = yield from _take_over(paths, request.app, run)
        except Exception as error:  # the commit has taken effect, so later errors must not fail it
            problem = str(error)
        if problem:
            problems.append(
                f"ledgers of retired run {run} of application {request.app!r} were not all closed; the reaper does the "
                f"rest ({problem})"
            )
    return Committed(result, tuple(problems))


def _take_over(paths: LogPaths, app: str, run: str) -> Steps[str]:
    """Fence and close the run's ledgers, newest first, because its executors write there. Returns the problems."""
    names = yield from children_steps(paths, paths.run(app, run))
    ledger_ids = tuple(sorted(ledger_ids_of(names), reverse=True))
    if not ledger_ids:
        return ""
    event = yield RecoverLedgers(ledger_ids, TAKEOVER_MS)
    if isinstance(event, Failed):
        return str(event.error)
    assert isinstance(event, Recovered), event
    parts = [f"ledger {ledger_id}: {error}" for ledger_id, error in event.failed.items()][:1]
    if len(event.failed) > 1:
        parts.append(f"{len(event.failed) - 1} more failed")
    if event.left:
        parts.append(f"{len(event.left)} were not closed in {TAKEOVER_MS // 1000} s")
    return ", ".join(parts)
