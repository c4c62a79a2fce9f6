"""The files of ``deploy/``, as tests look at them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
_BY_PATTERN: Final = re.compile(r'__name__=~"([^"]+)"')
_LABELS: Final = re.compile(r"\{[^{}]*\}")
_METRIC: Final = re.compile(r"\b(?:bookie|bookkeeper|replication|auditor|process)_\w+")


def read_yaml(path: str) -> list[dict[str, Any]]:
    """The documents of a file below ``deploy/``."""
    return list(yaml.safe_load_all((DEPLOY / path).read_text("utf-8")))


def alerts() -> list[dict[str, Any]]:
    """The rules of the example for Prometheus."""
    (document,) = read_yaml("monitoring/alerts.yml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    """What alerts and dashboard ask Prometheus for."""
    for rule in alerts():
        yield rule["expr"]
    dashboard = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def asked_metrics(expression: str) -> set[str]:
    """Regular expressions for the names of the metrics in an expression."""
    by_name = _METRIC.findall(_LABELS.sub("", expression))
    return {*by_name, *_BY_PATTERN.findall(expression)}
