"""A Docker daemon from Debian's packages, in a mount namespace of its own, and the images."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.deployed.control_groups import remove_control_groups
from tests.deployed.report import wait_for
from tests.deployed.started import Started
from tests.support.deploy import DEPLOY

REPOSITORY: Final = DEPLOY.parent
_HERE: Final = Path(__file__).parent
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: What an image declares, for the trees that stand in for them.
_STAND_INS: Final = {
    "python:3.13-slim": ("python", (f"ENV {_PATH}", 'CMD ["python3"]')),
    # Of it the Dockerfile in docs/deployment.md takes files only.
    "apache/spark:4.3.0": ("spark", ()),
    "zookeeper:3.9": (
        "zookeeper",
        (f"ENV {_PATH}", 'VOLUME ["/data", "/datalog", "/logs"]', 'ENTRYPOINT ["/docker-entrypoint.sh"]'),
    ),
}
#: The parent of the containers' control groups.
_CGROUP: Final = "bk-spark-deployed"
IMAGE: Final = "bk-spark"


class Engine(Started):
    """Docker, as long as a ``with`` statement runs. ``roots`` has the trees of ``make_roots.sh``."""

    def __init__(self, roots: Path) -> None:
        self.directory = roots
        self._daemon: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        command = ["unshare", "--mount", "--propagation", "private", "bash", str(_HERE / "start_engine.sh")]
        command += [str(self.directory / "engine"), str(REPOSITORY), str(self.directory / "docker"), f"/{_CGROUP}"]
        with (self.directory / "engine.log").open("wb") as log:
            self._daemon = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._answers, f"Docker's daemon answers; see {self.directory / 'engine.log'}")
        self._forget()

    def _stop(self) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(timeout=60)
        remove_control_groups(_CGROUP)

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, f"Docker's daemon ended; see {self.directory / 'engine.log'}"
        return self.run("docker", "version", check=False).returncode == 0

    def _forget(self) -> None:
        """Remove what a run left that was killed, and images that newer ones replaced."""
        if containers := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *containers)
        self.docker("network", "prune", "--force")
        self.docker("image", "prune", "--force")
        self.docker("builder", "prune", "--force", "--keep-storage", "2GB")
        self.docker("volume", "prune", "--all", "--force")

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the daemon's file system."""
        done = subprocess.run(self._inside(command), capture_output=True, text=True, timeout=600)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done

    def _inside(self, command: Sequence[str]) -> list[str]:
        assert self._daemon is not None
        return ["nsenter", "--target", str(self._daemon.pid), "--mount", "env", "-i", "HOME=/root", _PATH, *command]

    def docker(self, *arguments: str) -> str:
        """What ``docker`` prints."""
        return self.run("docker", *arguments).stdout.strip()

    def inspect(self, name: str) -> dict[str, Any]:
        """What Docker knows about an image or a container."""
        (found,) = json.loads(self.docker("inspect", name))
        assert isinstance(found, dict)
        return found

    def import_stand_ins(self) -> None:
        """Make images of the trees, under the names that the files ask for."""
        for image, (tree, changes) in _STAND_INS.items():
            made = f"made={(self.directory / f'{tree}.made').stat().st_mtime_ns}"
            if not self.docker("images", "--quiet", "--filter", f"label={made}", image):
                options = [option for change in (*changes, f"LABEL {made}") for option in ("--change", change)]
                # Packed outside of the daemon's file system, where the trees are.
                with subprocess.Popen(
                    ["tar", "-C", str(self.directory / tree), "-c", "."], stdout=subprocess.PIPE
                ) as packing:
                    importing = self._inside(["docker", "import", *options, "-", image])
                    subprocess.run(importing, stdin=packing.stdout, stdout=subprocess.DEVNULL, check=True, timeout=600)
                assert packing.returncode == 0, f"tar ended with status {packing.returncode}"
