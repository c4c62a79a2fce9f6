"""The files of ``deploy/``, as tests look at them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
_NAME: Final = r"\b(?:bookie|bookkeeper|replication|auditor|process)_\w+"
#: A name with or without labels, or labels alone.
_SELECTOR: Final = re.compile(rf"({_NAME})?\{{([^{{}}]*)\}}|({_NAME})")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
#: Labels that Prometheus adds.
_ADDED: Final = frozenset({"cluster", "instance", "job"})


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


def asked_samples(expression: str) -> list[tuple[str, dict[str, str]]]:
    """What an expression selects: a regular expression for the metric's name, and some for the values of its labels,
    without those that Prometheus adds."""
    found = []
    for labelled, selector, plain in _SELECTOR.findall(expression):
        labels = {}
        for label, operator, value in _MATCHER.findall(selector):
            assert operator in ("=", "=~"), f"the tests do not know {operator}: {expression}"
            labels[label] = re.escape(value) if operator == "=" else value
        name = labels.pop("__name__", "") or labelled or plain
        if name:
            found.append((name, {label: value for label, value in labels.items() if label not in _ADDED}))
    return found


def asked_metrics(expression: str) -> set[str]:
    """Regular expressions for the names of the metrics in an expression."""
    return {name for name, _ in asked_samples(expression)}
