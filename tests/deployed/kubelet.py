"""Pods in containers, as a kubelet starts, asks and stops them by their specifications."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.deployed.engine import Engine
from tests.deployed.report import wait_for

#: Kubernetes' defaults.
_GRACE_PERIOD_S: Final = 30
_RETRY_PAUSE_S: Final = 1.0
_UNITS: Final = {"Mi": "m", "Gi": "g"}


@dataclass(frozen=True, slots=True)
class Pod:
    """What the API server tells a kubelet."""

    name: str
    namespace: str
    node: str
    spec: Mapping[str, Any]
    #: The headless Service, which gives the pod its name in DNS.
    service: str | None = None
    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: A directory for each claim of a StatefulSet. It stays when the pod goes.
    claims: Mapping[str, Path] = field(default_factory=dict)
    #: The directory with token and certificate of the service account.
    account: Path | None = None

    @property
    def domain(self) -> str:
        service = f"{self.service}." if self.service else ""
        return f"{service}{self.namespace}.svc.cluster.local"


class Kubelet:
    """Starts pods in the network ``network`` of ``engine``. ``directory`` has what is mounted."""

    def __init__(self, engine: Engine, network: str, directory: Path) -> None:
        self._engine = engine
        self._network = network
        self._directory = directory

    def start(self, pod: Pod, timeout_s: float = 240) -> None:
        """Run the containers that prepare the pod, one after the other and again if they fail, then start its own."""
        for container in pod.spec.get("initContainers", ()):
            name = f"{pod.name}-{container['name']}"
            self._until_it_succeeds(lambda name=name, one=container: self._run(pod, one, name), name, timeout_s)
        for container in pod.spec["containers"]:
            self._create(pod, container, self.container(pod), "--detach")

    def run_job(self, pod: Pod, timeout_s: float = 240) -> str:
        """Run the pod's only container until it succeeds. Returns what it printed then."""
        (container,) = pod.spec["containers"]
        return self._until_it_succeeds(lambda: self._run(pod, container, pod.name), pod.name, timeout_s)

    def _until_it_succeeds(self, run: Callable[[], tuple[int, str]], what: str, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while True:
            status, printed = run()
            if status == 0:
                return printed
            assert time.monotonic() < deadline, f"{what} never succeeds: {printed}"
            time.sleep(_RETRY_PAUSE_S)

    def _run(self, pod: Pod, container: Mapping[str, Any], name: str) -> tuple[int, str]:
        done = self._create(pod, container, name, "--rm", check=False)
        return done.returncode, done.stdout + done.stderr

    def container(self, pod: Pod) -> str:
        return f"deployed-{pod.name}"

    def wait_ready(self, pod: Pod) -> None:
        """Ask the probes for start and readiness, in their intervals, and the one for liveness once."""
        (container,) = pod.spec["containers"]
        startup = container.get("startupProbe")
        if startup is not None:
            allowed_s = startup["failureThreshold"] * startup["periodSeconds"]
            wait_for(lambda: self.probe(pod, startup), f"{pod.name} has started", allowed_s)
        if "readinessProbe" in container:
            wait_for(lambda: self.probe(pod, container["readinessProbe"]), f"{pod.name} is ready")
        if "livenessProbe" in container:
            wait_for(lambda: self.probe(pod, container["livenessProbe"]), f"{pod.name} is alive")

    def probe(self, pod: Pod, probe: Mapping[str, Any]) -> bool:
        """Ask from outside of the pod, at its address."""
        (container,) = pod.spec["containers"]
        what = probe.get("httpGet") or probe["tcpSocket"]
        (port,) = (each["containerPort"] for each in container["ports"] if each["name"] == what["port"])
        networks = self._engine.inspect(self.container(pod))["NetworkSettings"]["Networks"]
        timeout_s = probe.get("timeoutSeconds", 1)
        asked = http.client.HTTPConnection(networks[self._network]["IPAddress"], port, timeout=timeout_s)
        try:
            if "tcpSocket" in probe:
                asked.connect()
                return True
            asked.request("GET", what["path"], headers={"User-Agent": "kube-probe/1.33"})
            return 200 <= asked.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            asked.close()

    def stop(self, pod: Pod) -> int:
        """Send SIGTERM, and SIGKILL after the grace period. Returns the exit status."""
        grace_s = pod.spec.get("terminationGracePeriodSeconds", _GRACE_PERIOD_S)
        self._engine.docker("stop", "--time", str(grace_s), self.container(pod))
        status = self._engine.inspect(self.container(pod))["State"]["ExitCode"]
        assert isinstance(status, int)
        return status

    def remove(self, pod: Pod) -> None:
        """The pod goes, with its directories but for the claims."""
        self._engine.run("docker", "rm", "--force", "--volumes", self.container(pod), check=False)
        shutil.rmtree(self._directory / pod.name, ignore_errors=True)

    def exec(self, pod: Pod, *command: str) -> str:
        """``kubectl exec``."""
        return self._engine.docker("exec", self.container(pod), *command)

    def logs(self, pod: Pod) -> list[str]:
        done = self._engine.run("docker", "logs", self.container(pod))
        return (done.stdout + done.stderr).splitlines()

    def _create(self, pod: Pod, container: Mapping[str, Any], name: str, *options: str, check: bool = True) -> Any:
        container_name = self.container(pod) if "--detach" in options else f"deployed-{name}"
        command = [
            "docker",
            "run",
            *options,
            "--name",
            container_name,
            "--no-healthcheck",
            *self._rights(pod, container),
        ]
        command += ["--network", self._network, "--hostname", pod.name, "--domainname", pod.domain]
        for known in (f"{pod.name}.{pod.domain}", *((pod.service, pod.domain) if pod.service else ())):
            command += ["--network-alias", known]
        if pod.service is None:
            command += ["--network-alias", pod.name]
        environment = self._environment(pod, container)
        for variable, value in environment.items():
            command += ["--env", f"{variable}={value}"]
        if "memory" in (limits := container.get("resources", {}).get("limits", {})):
            memory = docker_size(limits["memory"])
            command += ["--memory", memory, "--memory-swap", memory]
        for mount in container.get("volumeMounts", ()):
            source = self._source(pod, mount["name"]) / mount.get("subPath", "")
            if "subPath" in mount and not source.exists():
                self._make(pod, source)
            command += ["--volume", f"{source}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"]
        entry, *more = container.get("command", [None])
        if entry is not None:
            command += ["--entrypoint", entry]
        arguments = [_expanded(each, environment) for each in (*more, *container.get("args", ()))]
        return self._engine.run(*command, container["image"], *arguments, check=check)

    @staticmethod
    def _rights(pod: Pod, container: Mapping[str, Any]) -> list[str]:
        context = pod.spec.get("securityContext", {}) | container.get("securityContext", {})
        options = []
        if "runAsUser" in context:
            options += ["--user", f"{context['runAsUser']}:{context.get('runAsGroup', 0)}"]
        if "fsGroup" in context:
            options += ["--group-add", str(context["fsGroup"])]
        if context.get("readOnlyRootFilesystem"):
            options.append("--read-only")
        if context.get("allowPrivilegeEscalation") is False:
            options += ["--security-opt", "no-new-privileges:true"]
        for each in context.get("capabilities", {}).get("drop", ()):
            options += ["--cap-drop", each]
        return options

    @staticmethod
    def _environment(pod: Pod, container: Mapping[str, Any]) -> dict[str, str]:
        fields = {"spec.nodeName": pod.node, "metadata.name": pod.name, "metadata.namespace": pod.namespace}
        return {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container.get("env", ())
        }

    def _source(self, pod: Pod, name: str) -> Path:
        """The directory of a volume, filled."""
        if name in pod.claims:
            if not pod.claims[name].exists():
                self._make(pod, pod.claims[name])
            return pod.claims[name]
        (volume,) = (each for each in pod.spec["volumes"] if each["name"] == name)
        if "projected" in volume:
            assert pod.account is not None
            return pod.account
        directory = self._directory / pod.name / name
        if not directory.exists():
            self._make(pod, directory)
            if "emptyDir" in volume:
                directory.chmod(0o2777)
            else:
                for file, text in pod.config_maps[volume["configMap"]["name"]].items():
                    (directory / file).write_text(text)
                    (directory / file).chmod(0o644)
        return directory

    @staticmethod
    def _make(pod: Pod, directory: Path) -> None:
        """A directory as a volume's plug-in leaves it: root's, and writable for ``fsGroup`` if there is one."""
        directory.mkdir(parents=True)
        group = pod.spec.get("securityContext", {}).get("fsGroup")
        directory.chmod(0o755 if group is None else 0o2775)
        if group is not None:
            os.chown(directory, 0, group)


def docker_size(quantity: str) -> str:
    """Kubernetes' 512Mi is Docker's 512m."""
    return re.sub("[MG]i$", lambda unit: _UNITS[unit[0]], quantity)


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """``$(NAME)`` is replaced where the pod has such a variable."""
    return re.sub(r"\$\((\w+)\)", lambda name: environment.get(name[1], name[0]), text)
