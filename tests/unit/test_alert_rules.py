"""deploy/monitoring: each alert fires when it has to, and not otherwise, as Prometheus evaluates it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.deploy import DEPLOY, alerts, read_yaml
from tests.support.machine import cannot_run

_RULES: Final = DEPLOY / "monitoring" / "alerts.yml"
_BOOKIE: Final = {"cluster": "c", "instance": "b1:8080", "job": "bookies"}
_CLUSTER: Final = {"cluster": "c"}
_P99: Final = {"success": "true", "quantile": "0.99"}
#: Longer than the windows over which rates are taken.
_WINDOW_MINUTES: Final = 16


@dataclass(frozen=True)
class Case:
    """Samples of a metric, one in a minute: a constant, or a counter's growth in a minute.

    ``value``: what an alert says that tells it.
    """

    metric: str
    bad: float
    good: float
    grows: bool = False
    extra: dict[str, str] = field(default_factory=dict)
    others: tuple[tuple[str, float], ...] = ()
    labels: dict[str, str] = field(default_factory=lambda: _BOOKIE)
    value: str = ""


_COPIES: Final = "replication_auditor_NUM_LEDGERS_HAVING"
_WORKER: Final = "replication_replication_worker"
_SERVER: Final = "bookkeeper_server"
CASES: Final = {
    "BookieDown": Case("bookie_SERVER_STATUS", -1, 1),
    "BookieReadOnly": Case("bookie_SERVER_STATUS", 0, 1),
    "LedgerDirectoryTakesNoFiles": Case("bookie_ledger_writable_dirs", 1, 2, others=(("bookie_ledger_num_dirs", 2),)),
    "DiskFills": Case(
        "bookie_ledger_dir__data_usage", 85, 80, labels={"cluster": "c", "instance": "b1:8080"}, value="85"
    ),
    "DiskAlmostFull": Case(
        "bookie_ledger_dir__data_usage", 91, 90, labels={"cluster": "c", "instance": "b1:8080"}, value="91"
    ),
    "JournalIsSlow": Case("bookie_journal_JOURNAL_SYNC", 101, 100, extra=_P99, labels=_BOOKIE | _P99, value="101"),
    "BookieIsOverloaded": Case(f"{_SERVER}_loop_delay", 21, 20, extra=_P99, labels=_BOOKIE | _P99, value="21"),
    "FewFilesLeft": Case("process_open_fds", 81, 80, others=(("process_max_fds", 100),), value="81"),
    "CallersAreUnauthorized": Case(f"{_SERVER}_requests_unauthorized", 60, 6, grows=True, value="1"),
    "GrpcCallsAreRejected": Case(f"{_SERVER}_grpc_calls_rejected", 120, 60, grows=True, value="2"),
    "GrpcCallsFail": Case(f"{_SERVER}_grpc_calls_failed", 30, 20, grows=True, others=((f"{_SERVER}_grpc_calls", 100),)),
    "BookieLost": Case("replication_auditor_lost_bookies", 1, 0, labels=_CLUSTER),
    "SeveralBookiesLost": Case("auditor_lost_bookies", 2, 1, labels=_CLUSTER, value="2"),
    "NoAuditor": Case("replication_auditor_elected", 2, 1, labels=_CLUSTER),
    "RepairIsDisabled": Case(f"{_WORKER}_disabled", 1, 0, labels=_CLUSTER),
    "EntriesWithoutCopy": Case(f"{_COPIES}_NO_REPLICA_OF_AN_ENTRY", 3, 0, labels=_CLUSTER, value="3"),
    "EntriesBelowAckQuorum": Case(f"{_COPIES}_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY", 3, 0, labels=_CLUSTER, value="3"),
    "EntriesUnreadable": Case(f"{_WORKER}_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION", 1, 0, grows=True),
    "RepairsFail": Case(f"{_WORKER}_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER", 1, 0, grows=True),
    "RepairsDoNotEnd": Case(f"{_WORKER}_repairing", 1, 0, labels=_CLUSTER),
    "CollectionStopped": Case("bookie_gc_stopped_ledgers", 4, 0, value="4"),
    "ForeignCluster": Case("bookie_gc_foreign_cluster", 1, 0),
}


def _promtool(*arguments: str) -> str:
    """Run promtool, which comes with Prometheus. Return what it says."""
    beside = str(Path(sys.executable).parent)
    program = shutil.which("promtool") or shutil.which("promtool", path=beside)
    if program is None:
        cannot_run("no promtool: scripts/ensure_test_programs.sh gets it, or says how")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _minutes(rule: dict[str, Any]) -> int:
    """When the alert has to have fired."""
    number, unit = int(rule.get("for", "0m")[:-1]), rule.get("for", "0m")[-1]
    return number * {"m": 1, "h": 60}[unit] + _WINDOW_MINUTES


def _series(metric: str, case: Case, value: float, minutes: int, *, grows: bool) -> dict[str, str]:
    labels = ", ".join(f'{name}="{text}"' for name, text in (_BOOKIE | case.extra).items())
    values = f"0+{value:g}x{minutes}" if grows else f"{value:g}x{minutes}"
    return {"series": f"{metric}{{{labels}}}", "values": values}


def _expected(rule: dict[str, Any], case: Case) -> dict[str, Any]:
    """The alert, with the texts of the rule filled in."""
    texts = {}
    for name, text in rule["annotations"].items():
        filled = text.replace("{{ $labels.instance }}", _BOOKIE["instance"]).replace("{{ $value }}", case.value)
        assert "{{" not in filled, text
        texts[name] = filled
    return {"exp_labels": case.labels | rule["labels"], "exp_annotations": texts}


def _scenario(rule: dict[str, Any], *, fires: bool) -> dict[str, Any]:
    name, minutes = rule["alert"], _minutes(rule)
    case = CASES[name]
    value = case.bad if fires else case.good
    series = [_series(case.metric, case, value, minutes, grows=case.grows)]
    series += [_series(metric, case, other, minutes, grows=case.grows) for metric, other in case.others]
    expected = [_expected(rule, case)] if fires else []
    when = {"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": expected}
    return {"interval": "1m", "input_series": series, "alert_rule_test": [when]}


def _test_rules(directory: Path, scenarios: list[dict[str, Any]]) -> None:
    document = {"rule_files": [str(_RULES)], "evaluation_interval": "1m", "tests": scenarios}
    path = directory / "alerts_test.json"  # which is YAML, too
    path.write_text(json.dumps(document), "utf-8")
    _promtool("test", "rules", str(path))


def test_the_rules_are_valid() -> None:
    assert f"{len(alerts())} rules found" in _promtool("check", "rules", str(_RULES))


def test_each_alert_fires_when_it_has_to_and_not_otherwise(tmp_path: Path) -> None:
    rules = alerts()
    assert [rule["alert"] for rule in rules] == [*CASES]
    scenarios = [_scenario(rule, fires=fires) for rule in rules for fires in (True, False)]
    _test_rules(tmp_path, scenarios)


def test_no_auditor_at_all_is_told_too(tmp_path: Path) -> None:
    (rule,) = (rule for rule in alerts() if rule["alert"] == "NoAuditor")
    expected = [{"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}]
    when = {"eval_time": f"{_minutes(rule)}m", "alertname": "NoAuditor", "exp_alerts": expected}
    _test_rules(tmp_path, [{"interval": "1m", "input_series": [], "alert_rule_test": [when]}])


#: Pods as Kubernetes' discovery shows them: their names for the app and the component, the port; and what becomes of
#: them. None: nobody asks them.
PODS: Final = {
    "bookie-0": (("bookkeeper", "bookie", "http"), "bookies"),
    "bookie-1": (("bookkeeper", "bookie", "bookie"), None),
    "autorecovery-0": (("bookkeeper", "autorecovery", "http"), "autorecovery"),
    "zookeeper-0": (("zookeeper", "zookeeper", "http"), None),
}


def test_the_example_asks_whom_the_alerts_are_about(tmp_path: Path) -> None:
    """Debian's promtool knows no discovery by Kubernetes, so pods stand in the file, with the labels of discovery."""
    (document,) = read_yaml("monitoring/prometheus.yml")
    pods: list[dict[str, Any]] = []
    for name, ((app, component, port), _) in PODS.items():
        labels = {"pod_label_app_kubernetes_io_name": app, "pod_label_app_kubernetes_io_component": component}
        labels |= {"pod_container_port_name": port, "namespace": "logs", "pod_name": name}
        pods.append({"targets": ["10.0.0.1:8080"], "labels": {f"__meta_kubernetes_{k}": v for k, v in labels.items()}})
    (by_kubernetes,) = (job for job in document["scrape_configs"] if job.pop("kubernetes_sd_configs", None))
    by_kubernetes["static_configs"] = pods
    path = tmp_path / "prometheus.yml"
    path.write_text(json.dumps(document), "utf-8")  # which is YAML, too
    (tmp_path / "alerts.yml").write_bytes(_RULES.read_bytes())
    assert f"{len(alerts())} rules found" in _promtool("check", "config", str(path))
    # It waits for all of the time: other kinds of discovery may find more.
    found = json.loads(_promtool("check", "service-discovery", "--timeout=3s", str(path), "kubernetes"))
    seen = {one["discoveredLabels"]["__meta_kubernetes_pod_name"]: one["labels"] for one in found}
    assert seen.keys() == PODS.keys()
    for name, (_, job) in PODS.items():
        labels = {label: text for label, text in seen[name].items() if not label.startswith("__")}
        assert labels == ({"job": job, "cluster": "logs", "instance": name} if job else {})
