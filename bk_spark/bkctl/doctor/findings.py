"""Findings of ``bkctl doctor``: a check, its result, and what to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.StrEnum):
    """How serious a finding is. A PROBLEM makes ``doctor`` exit with PROBLEMS_FOUND."""

    OK = "ok"
    WARNING = "warning"
    """It works now, but may stop working, or does not work for everybody."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. ``seen`` is what was found; ``remedy`` is what to do if it is wrong."""

    check: str
    status: Status
    seen: str
    remedy: str | None = None

    def line(self) -> str:
        """Return the finding in one line of text: status and check in columns, then what was seen."""
        told = self.seen if self.remedy is None else f"{self.seen}: {self.remedy}"
        return f"{self.status:<8}  {self.check:<15}  {' '.join(told.split())}"


def ok(check: str, seen: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Status.OK, seen)


def warning(check: str, seen: str, remedy: str) -> Finding:
    """Return a finding of what works here and now, but may stop or fail for others."""
    return Finding(check, Status.WARNING, seen, remedy)


def problem(check: str, seen: str, remedy: str) -> Finding:
    """Return a finding of what keeps Spark from reading or writing."""
    return Finding(check, Status.PROBLEM, seen, remedy)
