"""deploy/: what its files say about the product, and about each other. tests/integration/test_deployment.py starts
bookies by them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bk_spark.bkctl.command_line.parser import URI_VARIABLE
from bookie_server.admin.endpoints import heartbeat_routes
from bookie_server.cli import ExitStatus, _parser
from bookie_server.config.config import BookieConfig
from bookie_server.config.load import load_config
from bookie_server.process import EXIT_BOOKIE_ERROR
from tests.support.deploy import DEPLOY, read_yaml
from tests.support.machine import cannot_run

CONFIGURATIONS = ("docker/bk_server.conf", "kubernetes/base/bk_server.conf", "systemd/bk_server.conf")
#: Where the configuration is on a bookie's host, as in docs/operations.md.
CONF = "/etc/bookkeeper/bk_server.conf"


def load(path: str, tmp_path: Path) -> tuple[BookieConfig, list[str]]:
    """The configuration on this host, whose name need not resolve."""
    conf = tmp_path / "bk_server.conf"
    text = (DEPLOY / path).read_text("utf-8")
    text = re.sub("(?m)^advertisedAddress=.*$", "", text)
    conf.write_text(text + "\nadvertisedAddress=127.0.0.1\nallowLoopback=true\n")
    return load_config(str(conf))


def kubernetes(kind: str, path: str) -> dict[str, Any]:
    (found,) = (document for document in read_yaml(f"kubernetes/{path}") if document["kind"] == kind)
    return found


def pods() -> dict[str, dict[str, Any]]:
    """The pods' specifications, by file and kind."""
    files = [path.relative_to(DEPLOY).as_posix() for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml"))]
    return {
        f"{file} {document['kind']}": document["spec"]["template"]["spec"]
        for file in files
        for document in read_yaml(file)
        if "template" in document.get("spec", {})
    }


@pytest.mark.parametrize("path", CONFIGURATIONS)
def test_configurations_give_no_warning_and_agree_with_what_is_around_them(path: str, tmp_path: Path) -> None:
    config, warnings = load(path, tmp_path)
    assert warnings == []
    assert (config.port, config.http_enabled, config.http_port) == (3181, True, 8080)
    (journal,) = config.journal_directories
    (ledgers,) = config.ledger_directories
    mounts = {
        mount["mountPath"]
        for mount in pods()["kubernetes/base/bookie.yaml StatefulSet"]["containers"][0]["volumeMounts"]
    }
    if path.startswith("kubernetes"):
        assert {str(Path(journal).parent), str(Path(ledgers).parent)} <= mounts
    elif path.startswith("docker"):
        (compose,) = read_yaml("docker/compose.yml")
        assert all(Path("/bookkeeper") in Path(each).parents for each in (journal, ledgers))
        assert "bookie1:/bookkeeper" in compose["services"]["bookie1"]["volumes"]
    else:
        unit = (DEPLOY / "systemd" / "bookie.service").read_text("utf-8")
        assert "StateDirectory=bookkeeper\n" in unit
        assert all(Path("/var/lib/bookkeeper") in Path(each).parents for each in (journal, ledgers))


def test_commands_are_those_of_bookie_server() -> None:
    parse = _parser().parse_args
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text("utf-8")
    entry, command = (re.findall(rf"^{name} \[(.*)\]$", dockerfile, re.MULTILINE)[0] for name in ("ENTRYPOINT", "CMD"))
    assert entry == '"bookie-server"'
    unit = (DEPLOY / "systemd" / "bookie.service").read_text("utf-8")
    (started,) = re.findall(r"^ExecStart=/opt/bk-spark/bin/bookie-server (.*)$", unit, re.MULTILINE)
    (compose,) = read_yaml("docker/compose.yml")
    found = [
        re.findall(r'"([^"]+)"', command),
        started.split(),
        compose["services"]["autorecovery"]["command"],
        kubernetes("StatefulSet", "base/bookie.yaml")["spec"]["template"]["spec"]["containers"][0]["args"],
        kubernetes("Deployment", "base/autorecovery.yaml")["spec"]["template"]["spec"]["containers"][0]["args"],
    ]
    parsed = [parse(arguments) for arguments in found]
    assert [each.command for each in parsed] == ["start", "start", "autorecovery", "start", "autorecovery"]
    assert {each.conf for each in parsed} == {CONF}


def test_systemd_does_not_start_again_what_a_person_must_mend() -> None:
    unit = (DEPLOY / "systemd" / "bookie.service").read_text("utf-8")
    assert f"RestartPreventExitStatus={ExitStatus.INVALID_CONF:d} {EXIT_BOOKIE_ERROR}\n" in unit
    seconds = dict(re.findall(r"^(RestartSec|StartLimitIntervalSec|StartLimitBurst)=(\d+)", unit, re.MULTILINE))
    pause, interval, burst = (
        int(seconds["RestartSec"]),
        int(seconds["StartLimitIntervalSec"]) * 60,
        int(seconds["StartLimitBurst"]),
    )
    # A start without ZooKeeper fails after 10 s and is repeated for ever; one that fails at once is not.
    assert interval / (pause + 10) < burst < interval / pause


def test_docker_starts_servers_again_whatever_their_exit_status_and_after_the_machine() -> None:
    """Other policies of Docker leave bookies down when ZooKeeper comes back late, or when the machine starts."""
    (compose,) = read_yaml("docker/compose.yml")
    policies = {name: service.get("restart") for name, service in compose["services"].items()}
    finite = {"init", "bkctl"}
    assert finite < policies.keys()
    assert policies == {name: None if name in finite else "unless-stopped" for name in policies}


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        cannot_run("no systemd-analyze")
    unit = (DEPLOY / "systemd" / "bookie.service").read_text("utf-8")
    # The program must exist.
    copy = tmp_path / "bookie.service"
    copy.write_text(unit.replace("/opt/bk-spark/bin/bookie-server", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_copies_what_exists_and_is_what_pods_expect() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text("utf-8")
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text("utf-8")
    copies = re.findall(r"^COPY (?:--chmod=\d+ )?(?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    sources = {source for each in copies for source in each.split()}
    assert {"bk_spark", "bookie_server", "deploy/docker/bookie-healthy"} <= sources
    assert sources == set(re.findall(r"^!(.+)$", ignored, re.MULTILINE))
    assert [source for source in sources if not (DEPLOY.parent / source).exists()] == []
    (user,) = re.findall(r"^USER (\d+):\1$", dockerfile, re.MULTILINE)
    for name, pod in pods().items():
        for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            if "image" in container and not container["image"].startswith("zookeeper:"):
                assert container["image"] == "bk-spark:0.1.0", name
                assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
        if "securityContext" in pod:
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["runAsUser"] == (1000 if "zookeeper" in name else int(user)), name


def test_uris_and_ports_are_the_same_everywhere(tmp_path: Path) -> None:
    (compose,) = read_yaml("docker/compose.yml")
    (init,) = kubernetes("Job", "init/job.yaml")["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in init["env"]] == [URI_VARIABLE]
    for path, uri in (
        ("docker/bk_server.conf", compose["services"]["init"]["environment"][URI_VARIABLE]),
        ("kubernetes/base/bk_server.conf", init["env"][0]["value"]),
    ):
        assert f"\nmetadataServiceUri={uri}\n" in (DEPLOY / path).read_text("utf-8")
    config, _ = load("kubernetes/base/bk_server.conf", tmp_path)
    (bookie,) = kubernetes("StatefulSet", "base/bookie.yaml")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in bookie["ports"]}
    assert ports == {"bookie": config.port, "http": config.http_port}
    service = kubernetes("Service", "base/bookie.yaml")["spec"]
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    probes = (bookie["startupProbe"], bookie["livenessProbe"], bookie["readinessProbe"])
    assert {probe["httpGet"]["port"] for probe in probes} == {"http"}
    (autorecovery,) = pods()["kubernetes/base/autorecovery.yaml Deployment"]["containers"]
    assert autorecovery["livenessProbe"]["httpGet"]["path"] in heartbeat_routes()
    assert compose["services"]["autorecovery"]["healthcheck"]["test"][-1] in heartbeat_routes()


def test_selectors_select_the_pods_and_names_fit() -> None:
    stateful = kubernetes("StatefulSet", "base/bookie.yaml")
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["selector"]["matchLabels"] == labels
    assert kubernetes("Service", "base/bookie.yaml")["spec"]["selector"] == labels
    assert kubernetes("Service", "base/bookie.yaml")["metadata"]["name"] == stateful["spec"]["serviceName"]
    assert kubernetes("PodDisruptionBudget", "base/bookie.yaml")["spec"]["selector"]["matchLabels"] == labels
    claims = {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    volumes = claims | {volume["name"] for volume in stateful["spec"]["template"]["spec"]["volumes"]}
    (bookie,) = stateful["spec"]["template"]["spec"]["containers"]
    assert {mount["name"] for mount in bookie["volumeMounts"]} == volumes
    policy = kubernetes("NetworkPolicy", "base/network-policy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()


def test_kustomize_builds_them_with_racks_and_for_a_trial(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        cannot_run("no kubectl")
    folder = os.path.relpath(DEPLOY / "kubernetes", tmp_path.resolve())
    wanted = {"namespace": "here", "resources": [f"{folder}/base"], "components": [f"{folder}/racks"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    found = {}
    for directory in (tmp_path, DEPLOY / "kubernetes" / "trial"):
        command = ["kubectl", "kustomize", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert (done.returncode, done.stderr) == (0, "")
        found[directory] = {
            (document["kind"], document["metadata"]["name"]): document for document in yaml.safe_load_all(done.stdout)
        }
    pod = found[tmp_path]["StatefulSet", "bookie"]["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["initContainers"]] == ["wait-for-cluster", "rack"]
    tokens = [volume["name"] for volume in pod["volumes"] if "projected" in volume]
    assert [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] in tokens] == []
    (account,) = found[tmp_path]["ClusterRoleBinding", "bookie-racks"]["subjects"]
    assert (account["name"], account["namespace"]) == (pod["serviceAccountName"], "here")
    assert {("Job", "bookkeeper-init"), ("StatefulSet", "zookeeper"), ("StatefulSet", "bookie")} <= set(
        found[DEPLOY / "kubernetes" / "trial"]
    )
