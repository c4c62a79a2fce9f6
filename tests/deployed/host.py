"""A host with systemd, in namespaces of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Final

from tests.deployed.control_groups import remove_control_groups, version_2
from tests.deployed.report import wait_for
from tests.deployed.started import Started

_HERE: Final = Path(__file__).parent
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Host(Started):
    """A copy of the tree ``host``, running as long as a ``with`` statement does."""

    def __init__(self, roots: Path) -> None:
        self._tree = roots / "host"
        self.root = roots / "host.running"
        self._log = roots / "host.log"
        self._starter: subprocess.Popen[bytes] | None = None
        self._systemd_pid = 0
        self._cgroup = version_2() / f"bk-spark-host-{os.getpid()}"

    def _start(self) -> None:
        subprocess.run(["rm", "-rf", str(self.root)], check=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(self._tree), str(self.root)], check=True)
        self._cgroup.mkdir()
        with self._log.open("wb") as log:
            command = ["bash", str(_HERE / "start_host.sh"), str(self.root), str(self._cgroup)]
            self._starter = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._answers, f"systemd is up; see {self._log}", 60)

    def _stop(self) -> None:
        """The end of its first process ends all others."""
        if self._starter is not None:
            if self._systemd_pid:
                os.kill(self._systemd_pid, signal.SIGKILL)
            else:
                self._starter.terminate()
            self._starter.wait(timeout=60)
        remove_control_groups(self._cgroup.name)
        subprocess.run(["rm", "-rf", str(self.root)], check=True)

    def _answers(self) -> bool:
        assert self._starter is not None
        assert self._starter.poll() is None, f"systemd ended; see {self._log}"
        children = Path(f"/proc/{self._starter.pid}/task/{self._starter.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text() != "systemd\n":
            return False
        self._systemd_pid = int(children[0])
        return self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def run(
        self, *command: str, check: bool = True, network: bool = False, directory: str = "/"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host as root. ``network``: in the network of the machine, to install packages."""
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", *([] if network else ["--net"])]
        inside = ["nsenter", "--target", str(self._systemd_pid), *spaces, "env", "-i", "-C", directory, "HOME=/root"]
        done = subprocess.run([*inside, _PATH, *command], capture_output=True, text=True, timeout=300)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done
