"""Spark in the network of the compose file: the image of docs/deployment.md for drivers and executors, as a standalone
cluster."""

from __future__ import annotations

import json
import shutil
from typing import Final

from tests.deployed.compose import Composed, build_image
from tests.deployed.engine import REPOSITORY, Engine
from tests.deployed.report import check, wait_for
from tests.support.deploy import DEPLOY
from tests.support.environments import build_wheel

_IMAGE: Final = "deployed-spark"
_MASTER: Final = "spark-master"
_WORKER: Final = "spark-worker"
_ADDRESS: Final = f"spark://{_MASTER}:7077"
_CLASSES: Final = "org.apache.spark.deploy"


def run_spark(engine: Engine) -> None:
    build_image(engine)
    _build(engine)
    with Composed(engine) as composed:
        _use(engine, composed)


def documented_dockerfile() -> str:
    page = (DEPLOY.parent / "docs" / "deployment.md").read_text("utf-8")
    return page.partition("```dockerfile\n")[2].partition("```")[0]


def _build(engine: Engine) -> None:
    context = engine.directory / "spark.context"
    shutil.rmtree(context, ignore_errors=True)
    wheel = build_wheel(context)
    # The wheel of this checkout, instead of a release.
    text = documented_dockerfile()
    install = "RUN pip install --no-cache-dir bk-spark "
    assert text.count(install) == 1
    text = text.replace(install, f"COPY {wheel.name} /tmp/\n{install.replace('bk-spark', f'/tmp/{wheel.name}')}")
    (context / "Dockerfile").write_text(text)
    with check("docker build, by the Dockerfile for Spark in docs/deployment.md"):
        engine.docker("build", "--network", "host", "-t", _IMAGE, str(context))


def _use(engine: Engine, composed: Composed) -> None:
    def start(name: str, *command: str, options: tuple[str, ...] = ()) -> str:
        network = ("--network", composed.network, "--name", name, "--hostname", name)
        return engine.docker("run", *options, *network, _IMAGE, *command)

    spark_class = "/opt/spark/bin/spark-class"
    try:
        with check("a master and a worker start, as the user spark"):
            start(_MASTER, spark_class, f"{_CLASSES}.master.Master", "--host", _MASTER, options=("--detach",))
            start(_WORKER, spark_class, f"{_CLASSES}.worker.Worker", "--cores", "2", _ADDRESS, options=("--detach",))
            assert engine.docker("exec", _WORKER, "id", "-u") == "185"

            def registered() -> bool:
                return "Successfully registered" in engine.run("docker", "logs", _WORKER).stderr

            wait_for(registered, "the worker knows its master")
        with check("executors in the worker's container write and read 100,000 rows"):
            job = REPOSITORY / "tests" / "spark" / "standalone_job.py"
            submit = ("/opt/spark/bin/spark-submit", "--master", _ADDRESS, "/job.py", composed.uri, "deployed")
            printed = start("spark-driver", *submit, options=("--rm", "--volume", f"{job}:/job.py:ro"))
            answer = json.loads(printed.splitlines()[-1])
            assert (answer["rows"], answer["differ"]) == (100_000, 0), answer
            assert answer["package"].startswith("/usr/local/lib/"), answer
    finally:
        for name in (_WORKER, _MASTER, "spark-driver"):
            engine.run("docker", "rm", "--force", name, check=False)
