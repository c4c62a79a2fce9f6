"""deploy/monitoring: alerts and dashboard against the pages that they lead to. Whether bookies have their metrics is
seen in tests/integration/test_deployment.py."""

from __future__ import annotations

import json
import re

from tests.support.deploy import DEPLOY, alerts, asked_metrics, expressions, read_yaml

DOCS = DEPLOY.parent / "docs"
_RUNBOOK = "https://github.com/bk-spark/bk-spark/blob/main/docs/operations.md#"


def what_to_watch() -> list[str]:
    """The rows of the runbook's table."""
    page = (DOCS / "operations.md").read_text("utf-8")
    section = page.partition("\n## What to watch\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_every_alert_leads_to_a_section_of_the_runbook() -> None:
    page = (DOCS / "operations.md").read_text("utf-8")
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    for rule in alerts():
        url = rule["annotations"]["runbook_url"]
        assert url.startswith(_RUNBOOK), url
        assert url.removeprefix(_RUNBOOK) in anchors, url


def test_alerts_are_those_that_the_runbook_names() -> None:
    """Each metric of the table has its alert, with the section and the level of its row."""
    rules = {rule["alert"]: rule for rule in alerts()}
    assert len(rules) == len(alerts())
    unnamed = set(rules)
    for row in what_to_watch():
        name, level, _, sections = (cell.strip() for cell in row.strip("|").split("|"))
        for metric in re.findall("`([^`]+)`", name):
            found = {
                alert: rule
                for alert, rule in rules.items()
                if any(re.fullmatch(pattern, metric) for pattern in asked_metrics(rule["expr"]))
            }
            assert found, metric
            unnamed -= found.keys()
            severities = {rule["labels"]["severity"] for rule in found.values()}
            assert severities == set(re.findall("page|warning", level)), metric
            for rule in found.values():
                anchor = rule["annotations"]["runbook_url"].removeprefix(_RUNBOOK)
                assert f"(#{anchor})" in sections or anchor == "what-to-watch", (metric, anchor)
    # The text below the table has the usage of disks, whose metric is named after the directory.
    assert unnamed == {"DiskFills", "DiskAlmostFull"}


def test_panels_and_alerts_ask_for_something() -> None:
    assert all(asked_metrics(expression) for expression in expressions())
    dashboard = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text("utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["targets"] for panel in panels if panel["type"] != "row")


def test_names_of_jobs_are_those_of_the_scrape_configuration() -> None:
    (prometheus,) = read_yaml("monitoring/prometheus.yml")
    assert prometheus["rule_files"] == ["alerts.yml"]
    jobs = {job["job_name"] for job in prometheus["scrape_configs"]}
    matchers = [found for each in expressions() for found in re.findall(r'job=~?"([^"]+)"', each)]
    asked = {name for matcher in matchers for name in matcher.split("|")}
    assert asked == {"bookies", "autorecovery"}
    assert asked <= jobs
