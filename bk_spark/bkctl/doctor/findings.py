"""Findings of ``bkctl doctor``: a check, its result, and what to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.StrEnum):
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
        told = self.seen if self.remedy is None else f"{self.seen}: {self.remedy}"
        return f"{self.status:<8}  {self.check:<15}  {' '.join(told.split())}"


def ok(check: str, seen: str) -> Finding:
    return Finding(check, Status.OK, seen)


def warning(check: str, seen: str, remedy: str) -> Finding:
    return Finding(check, Status.WARNING, seen, remedy)


def problem(check: str, seen: str, remedy: str) -> Finding:
    return Finding(check, Status.PROBLEM, seen, remedy)
