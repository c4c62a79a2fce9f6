"""The image and the compose file: built, started, used, broken, stopped and started again."""

from __future__ import annotations

import json
import re
from typing import Final

from tests.deployed.engine import IMAGE, REPOSITORY, Engine
from tests.deployed.report import check, wait_for
from tests.deployed.started import Started
from tests.support.deploy import DEPLOY, read_yaml

#: Not the name in the file, so that its volumes are never taken for somebody's.
_PROJECT: Final = "bookkeeper-deployed"
_BUILD: Final = "services: {init: {build: {network: host}}}\n"
#: Clients in Python. The first prints the id of the ledger that it writes, the second how many entries it read back.
WRITE: Final = """
import os, bk_spark
bk = bk_spark.connect(os.environ["BK_METADATA_SERVICE_URI"])
writer = bk.create_ledger(quorum=bk_spark.Quorum(3, 2, 2))
writer.append_many([b"%d" % number * 100 for number in range(2000)])
assert writer.close().last_entry_id == 1999
print(writer.ledger_id)
"""
READ: Final = """
import os, sys, bk_spark
bk = bk_spark.connect(os.environ["BK_METADATA_SERVICE_URI"])
entries = bk.open_ledger_for_reading(int(sys.argv[1])).read(0, 1999)
assert entries == [b"%d" % number * 100 for number in range(2000)]
print(len(entries))
"""
#: Prints the directories in which a file can be made.
_TOUCH: Final = """
for each in / /bookkeeper /etc /etc/bookkeeper /opt/bk-spark /tmp /usr /var; do
    touch $each/x 2>/dev/null && rm $each/x && echo $each
done; :
"""


def run_compose(engine: Engine) -> None:
    build_image(engine)
    with Composed(engine) as composed:
        composed.check_all()


def build_image(engine: Engine) -> None:
    """Build the image with Docker, and look at what it is."""
    engine.import_stand_ins()
    with check("docker build") as figures:
        dockerfile = DEPLOY / "docker" / "Dockerfile"
        # The host's network: the daemon leaves the firewall alone, so that others have no way out.
        engine.docker("build", "--network", "host", "-f", str(dockerfile), "-t", IMAGE, str(REPOSITORY))
        sizes = {name: engine.inspect(name)["Size"] / 1_000_000 for name in (IMAGE, "python:3.13-slim")}
        figures.append(f"{sizes[IMAGE] - sizes['python:3.13-slim']:.0f} MB on top of its base image")
    with check("the image is not root's, and has neither Spark nor a compiler nor a pip of its own"):
        assert engine.inspect(IMAGE)["Config"]["User"] == "10001:10001"
        script = (
            "id -u; command -v cc gcc || echo none; python -m pip --version 2>/dev/null || echo none; "
            'python -c "import pyspark" 2>/dev/null || echo none; find / -xdev -user 10001 2>/dev/null; :'
        )
        found = engine.docker("run", "--rm", "--network", "none", "--entrypoint", "sh", IMAGE, "-c", script).split("\n")
        assert found == ["10001", "none", "none", "none", "/bookkeeper"], found


class Composed(Started):
    """The project of the compose file, from ``docker compose up`` to ``down``."""

    #: As clients in its network have it.
    uri: Final = "zk+hierarchical://zookeeper:2181/ledgers"
    network: Final = f"{_PROJECT}_default"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        override = engine.directory / "compose.override.yml"
        override.write_text(_BUILD)
        files = ("-f", str(DEPLOY / "docker" / "compose.yml"), "-f", str(override))
        self._compose = ("docker", "compose", "--project-name", _PROJECT, *files)
        (document,) = read_yaml("docker/compose.yml")
        self._bookies = sorted(name for name in document["services"] if name.startswith("bookie"))
        #: What goes on running, and says how it is.
        self._healthy = ["autorecovery", *self._bookies, "zookeeper"]

    def _start(self) -> None:
        with check("docker compose up: all services are healthy"):
            self._run("up", "--build", "--detach")
            self._wait_healthy()

    def _stop(self) -> None:
        self._engine.run(*self._compose, "--profile", "tools", "down", "--volumes", "--timeout", "10", check=False)

    def check_all(self) -> None:
        ledger = self._use()
        self._kill(ledger)
        self._stop_and_go_on(ledger)

    def _run(self, *arguments: str) -> str:
        return self._engine.run(*self._compose, *arguments).stdout.strip()

    def _client(self, code: str, *arguments: str) -> str:
        """Run a client in Python, in the network of the compose file."""
        return self._run("run", "--rm", "--no-TTY", "--entrypoint", "python", "bkctl", "-c", code, *arguments)

    def _wait_healthy(self) -> None:
        def healthy() -> bool:
            lines = self._run("ps", "--format", "json").splitlines()
            return sorted(each["Service"] for each in map(json.loads, lines) if each["Health"] == "healthy") == (
                self._healthy
            )

        wait_for(healthy, "all services are healthy")

    def _use(self) -> str:
        with check("docker compose run --rm bkctl: bookies, and simpletest"):
            listed = [line.split() for line in self._run("run", "--rm", "bkctl").splitlines()[1:]]
            assert [(each[0], each[2]) for each in listed] == [(f"{name}:3181", "writable") for name in self._bookies]
            self._run("run", "--rm", "bkctl", "simpletest")
        with check("a client in the network writes and reads 2,000 entries"):
            ledger = self._client(WRITE)
            assert self._client(READ, ledger) == "2000"
        with check("a bookie has no rights, and writes to its volume and /tmp alone"):
            status = self._run("exec", "bookie1", "cat", "/proc/1/status")
            rights = dict(re.findall(r"^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):\s*(\w+)", status, re.MULTILINE))
            none = "0" * 16
            assert rights == {"Uid": "10001", "CapEff": none, "CapBnd": none, "NoNewPrivs": "1", "Seccomp": "2"}
            written = self._run("exec", "bookie1", "sh", "-c", _TOUCH)
            assert written.split() == ["/bookkeeper", "/tmp"], written
        return ledger

    def _kill(self, ledger: str) -> None:
        with check("a bookie that is killed is started again, and has its entries"):
            container = f"{_PROJECT}-bookie2-1"
            self._run("exec", "bookie2", "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")
            wait_for(lambda: self._engine.inspect(container)["RestartCount"] == 1, "the bookie starts again")
            self._wait_healthy()
            assert self._client(READ, ledger) == "2000"

    def _stop_and_go_on(self, ledger: str) -> None:
        with check("docker compose stop: in order, with status 0"):
            self._run("stop")
            for name in ("autorecovery", *self._bookies):
                state = self._engine.inspect(f"{_PROJECT}-{name}-1")["State"]
                assert (state["ExitCode"], state["OOMKilled"]) == (0, False), (name, state)
            logged = self._run("logs", "--no-log-prefix", "bookie1", "autorecovery").splitlines()
            assert logged
            assert [line for line in logged if "level=" in line and "level=INFO" not in line] == []
        with check("docker compose up again: the same cluster and entries"):
            self._run("up", "--detach")
            self._wait_healthy()
            assert self._client(READ, ledger) == "2000"
