"""The trial of deploy/kubernetes with racks: pods by their manifests, started all at once, used, killed, replaced."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography.hazmat.primitives.serialization import Encoding

from tests.deployed.compose import READ, WRITE
from tests.deployed.engine import IMAGE, Engine
from tests.deployed.kubelet import Kubelet, Pod, docker_size
from tests.deployed.report import check
from tests.support.certificates import identity
from tests.support.deploy import DEPLOY

_NAMESPACE: Final = "bookkeeper"
_NETWORK: Final = "deployed-pods"
_TOKEN: Final = "the pod's token"
_URI: Final = "zk+hierarchical://zookeeper:2181/ledgers"
#: Prints the znode that clients read racks from.
_RACKS: Final = """
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
zk = ZooKeeper("zookeeper:2181")
zk.start()
print(zk.get_latest("/bookies").data.decode())
zk.close()
"""
_LOAD: Final = """
import os, bk_spark
bk = bk_spark.connect(os.environ["BK_METADATA_SERVICE_URI"])
writer = bk.create_ledger(quorum=bk_spark.Quorum(4, 2, 2))
for _ in range(200):
    writer.append_many([os.urandom(65536)] * 100)
assert writer.close().last_entry_id == 19999
"""
_API: Final = "deployed-api"


def run_kubernetes(engine: Engine) -> None:
    engine.docker("tag", IMAGE, f"{IMAGE}:0.1.0")
    _Cluster(engine).run()


class _Cluster:
    """Pods of the trial, and the part of the Kubernetes API that they ask."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._directory = engine.directory / "kubernetes"
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir()
        self._documents = self._built()
        self._kubelet = Kubelet(engine, _NETWORK, self._directory / "pods")
        self._zookeeper = self._pod("StatefulSet", "zookeeper", 0, "zookeeper")
        replicas = self._found("StatefulSet", "bookie")["spec"]["replicas"]
        self._bookies = [self._pod("StatefulSet", "bookie", number, "bookie") for number in range(replicas)]
        replicas = self._found("Deployment", "autorecovery")["spec"]["replicas"]
        self._autorecovery = [self._pod("Deployment", "autorecovery", number, None) for number in range(replicas)]
        self._running = [self._zookeeper, *self._bookies, *self._autorecovery]

    def run(self) -> None:
        try:
            self._engine.docker("network", "create", _NETWORK)
            self._start_api()
            self._start()
            ledger = self._use()
            self._load()
            self._kill(ledger)
            self._replace(ledger)
            self._stop()
        finally:
            for pod in self._running:
                self._kubelet.remove(pod)
            self._engine.run("docker", "rm", "--force", _API, check=False)
            self._engine.run("docker", "network", "rm", _NETWORK, check=False)
            shutil.rmtree(self._directory)

    def _built(self) -> list[dict[str, Any]]:
        """What ``kubectl apply -k`` would send, of a kustomization as docs/deployment.md has it."""
        folder = os.path.relpath(DEPLOY / "kubernetes", self._directory)
        wanted = {"namespace": _NAMESPACE, "resources": [f"{folder}/trial"], "components": [f"{folder}/racks"]}
        (self._directory / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        done = subprocess.run(
            ["kubectl", "kustomize", str(self._directory)], capture_output=True, text=True, timeout=240, check=True
        )
        return list(yaml.safe_load_all(done.stdout))

    def _found(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = (each for each in self._documents if each["kind"] == kind and each["metadata"]["name"] == name)
        return found

    def _pod(self, kind: str, name: str, number: int, service: str | None) -> Pod:
        specification = self._found(kind, name)["spec"]
        return Pod(
            name=f"{name}-{number}",
            namespace=_NAMESPACE,
            node=f"node-{number}",
            spec=specification["template"]["spec"],
            service=service,
            config_maps={
                each["metadata"]["name"]: each["data"] for each in self._documents if each["kind"] == "ConfigMap"
            },
            claims={
                claim: self._directory / "claims" / f"{name}-{number}" / claim
                for claim in (each["metadata"]["name"] for each in specification.get("volumeClaimTemplates", ()))
            },
            account=self._directory / "account",
        )

    def _start_api(self) -> None:
        """Answer as kubernetes.default.svc does, with the certificate and the token that a pod is given."""
        own = identity("kubernetes", hosts=("kubernetes.default.svc",))
        account = self._directory / "account"
        served = self._directory / "served"
        for directory, files in (
            (account, {"token": _TOKEN.encode(), "ca.crt": own.authority.public_bytes(Encoding.PEM)}),
            (served, {"cert.pem": own.pem, "key.pem": own.key_pem()}),
        ):
            directory.mkdir()
            for name, content in files.items():
                (directory / name).write_bytes(content)
        script = Path(__file__).with_name("nodes.py")
        mounts = ("--volume", f"{served}:/served:ro", "--volume", f"{script}:/nodes.py:ro")
        command = ("python", "/nodes.py", "/served/cert.pem", "/served/key.pem", _TOKEN)
        names = ("--network", _NETWORK, "--network-alias", "kubernetes.default.svc")
        self._engine.docker("run", "--detach", "--name", _API, *names, *mounts, "python:3.13-slim", *command)

    def _start(self) -> None:
        """Bookies first: what they need comes last."""
        job = Pod(
            "bookkeeper-init", _NAMESPACE, "node-0", self._found("Job", "bookkeeper-init")["spec"]["template"]["spec"]
        )
        with check(f"{len(self._running)} pods and the job, started at once, get ready by their probes"):
            with ThreadPoolExecutor(len(self._running) + 1) as threads:
                begun = [threads.submit(self._kubelet.start, pod) for pod in self._bookies]
                begun += [threads.submit(self._kubelet.start, pod) for pod in self._autorecovery]
                begun.append(threads.submit(self._kubelet.start, self._zookeeper))
                printed = threads.submit(self._kubelet.run_job, job)
                for each in begun:
                    each.result()
            assert f"new cluster at {_URI}" in printed.result(), printed.result()
            for pod in self._running:
                self._kubelet.wait_ready(pod)
        with check("the job finds the cluster when it runs again"):
            assert "new cluster" not in self._kubelet.run_job(job)

    def _bkctl(self, *arguments: str) -> str:
        """The command of docs/deployment.md."""
        return self._kubelet.exec(self._bookies[0], "bkctl", "--metadata-service-uri", _URI, *arguments)

    def _client(self, code: str, *arguments: str) -> str:
        """Run a client in Python, in a container of its own."""
        options = ("--rm", "--network", _NETWORK, "--env", f"BK_METADATA_SERVICE_URI={_URI}", "--entrypoint", "python")
        return self._engine.docker("run", *options, IMAGE, "-c", code, *arguments)

    def _use(self) -> str:
        with check("bookies have the names of their pods, and the racks of their nodes"):
            names = [f"{pod.name}.{pod.domain}:3181" for pod in self._bookies]
            listed = [line.split() for line in self._bkctl("bookies").splitlines()[1:]]
            assert [(each[0], each[2]) for each in listed] == [(name, "writable") for name in names]
            znode = self._kubelet.exec(self._bookies[0], "python", "-c", _RACKS)
            racks = {name: entry["rack"] for name, entry in json.loads(znode)["default"].items()}
            assert racks == {name: f"/zone-{'ab'[number % 2]}" for number, name in enumerate(names)}
        with check("a client writes and reads 2,000 entries"):
            ledger = self._client(WRITE)
            assert self._client(READ, ledger) == "2000"
        return ledger

    def _load(self) -> None:
        with check("1.3 GB of entries, while each bookie has no more memory than it requests") as figures:
            (container,) = self._bookies[0].spec["containers"]
            resources = container["resources"]
            self._limit(resources["requests"]["memory"])
            self._client(_LOAD)
            self._limit(resources["limits"]["memory"])
            for pod in self._bookies:
                state = self._engine.inspect(self._kubelet.container(pod))["State"]
                assert (state["Running"], state["OOMKilled"]) == (True, False), (pod.name, state)
                self._kubelet.wait_ready(pod)
            figures.append(resources["requests"]["memory"])

    def _limit(self, memory: str) -> None:
        options = ("--memory", docker_size(memory), "--memory-swap", docker_size(memory))
        self._engine.docker("update", *options, *(self._kubelet.container(pod) for pod in self._bookies))

    def _kill(self, ledger: str) -> None:
        with check("a killed pod starts again on its volumes"):
            pod = self._bookies[1]
            self._engine.docker("kill", self._kubelet.container(pod))
            self._kubelet.remove(pod)
            self._kubelet.start(pod)
            self._kubelet.wait_ready(pod)
            assert self._client(READ, ledger) == "2000"

    def _replace(self, ledger: str) -> None:
        with check("each pod stops with status 0, is replaced with another address, and gets ready") as figures:
            for pod in reversed(self._bookies):
                assert self._kubelet.stop(pod) == 0, self._kubelet.logs(pod)
                assert [line for line in self._kubelet.logs(pod) if "level=ERROR" in line] == []
                self._kubelet.remove(pod)
                self._kubelet.start(pod)
                self._kubelet.wait_ready(pod)
            assert self._client(READ, ledger) == "2000"
            used = self._engine.docker("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}")
            figures.append("; ".join(line for line in used.splitlines() if "bookie-0" in line))

    def _stop(self) -> None:
        with check("all pods stop with status 0"):
            for pod in (*self._autorecovery, *self._bookies):
                assert self._kubelet.stop(pod) == 0, self._kubelet.logs(pod)
