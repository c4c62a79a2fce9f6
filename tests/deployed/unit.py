"""The systemd unit, set up by the commands of docs/deployment.md on a host with systemd."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.deployed.host import Host
from tests.deployed.report import check, wait_for
from tests.support.deploy import DEPLOY
from tests.support.environments import build_wheel

_CONF: Final = Path("etc/bookkeeper/bk_server.conf")
_BIN: Final = "/opt/bk-spark/bin"
_READY: Final = "http://127.0.0.1:8080/api/v1/bookie/is_ready"
_ZOOKEEPER: Final = """[Service]
ExecStart=/usr/bin/java -Xmx256m -cp /zookeeper/* org.apache.zookeeper.server.quorum.QuorumPeerMain /etc/zoo.cfg
SuccessExitStatus=143
"""
_DISK: Final = "/disk1"


def run_unit(roots: Path) -> None:
    with ExitStack() as stack:
        with check("a host with systemd starts"):
            host = stack.enter_context(Host(roots))
        _OnHost(host, roots).run()


def documented_commands() -> list[str]:
    """The commands of the section about hosts, without comments."""
    page = (DEPLOY.parent / "docs" / "deployment.md").read_text("utf-8")
    block = page.partition("## Hosts with systemd")[2].partition("```sh\n")[2].partition("```")[0]
    return [line.partition("  #")[0].strip().removeprefix("sudo ") for line in block.splitlines()]


class _OnHost:
    """The checks, in an order in which each leaves the bookie as the next wants it."""

    def __init__(self, host: Host, roots: Path) -> None:
        self._host = host
        self._roots = roots
        self._conf = host.root / _CONF

    def run(self) -> None:
        self._set_up()
        self._use()
        self._kill_and_stop()
        self._without_zookeeper()
        self._what_a_person_must_mend()
        self._another_disk()

    def _state(self) -> dict[str, str]:
        names = "ActiveState,SubState,Result,ExecMainStatus,NRestarts,MainPID"
        printed = self._host.run("systemctl", "show", "bookie", "--property", names).stdout
        return dict(line.split("=", 1) for line in printed.splitlines())

    def _ready(self) -> bool:
        return self._host.run("curl", "--silent", "--fail", _READY, check=False).returncode == 0

    def _wait_ready(self) -> None:
        wait_for(self._ready, "the bookie is ready")

    def _wait_state(self, **wanted: str) -> None:
        wait_for(lambda: wanted.items() <= self._state().items(), f"{wanted}")

    def _set_up(self) -> None:
        wheel_directory = self._roots / "wheel"
        shutil.rmtree(wheel_directory, ignore_errors=True)
        wheel = build_wheel(wheel_directory)
        checkout = self._host.root / "checkout"
        shutil.copytree(DEPLOY, checkout / "deploy")
        shutil.copy(wheel, checkout)
        (self._host.root / "etc/zoo.cfg").write_text(
            "dataDir=/var/zookeeper\nclientPort=2181\ntickTime=2000\nadmin.enableServer=false\n"
        )
        (self._host.root / "etc/systemd/system/zookeeper.service").write_text(_ZOOKEEPER)
        self._host.run("systemctl", "daemon-reload")
        self._host.run("systemctl", "start", "zookeeper")
        wait_for(self._zookeeper_answers, "ZooKeeper answers")
        with check("the commands of docs/deployment.md set the bookie up, and it gets ready"):
            for documented in documented_commands():
                # The wheel of this checkout, instead of a release.
                command = re.sub(r"(pip install) bk-spark$", rf"\1 {wheel.name}", documented)
                self._host.run("sh", "-c", command, network="pip install" in command, directory="/checkout")
            self._wait_ready()

    def _zookeeper_answers(self) -> bool:
        asked = self._host.run("bash", "-c", "echo srvr > /dev/tcp/192.0.2.11/2181", check=False)
        return asked.returncode == 0

    def _bkctl(self, *arguments: str) -> str:
        uri = "zk+hierarchical://zk1:2181/ledgers"
        return self._host.run(f"{_BIN}/bkctl", "--metadata-service-uri", uri, *arguments).stdout

    def _use(self) -> None:
        with check("it takes and gives 1,000 entries"):
            assert "bookie1:3181" in self._bkctl("bookies")
            self._bkctl("bookiesanity", "--entries", "1000", "bookie1:3181")
        with check("it is the user bookkeeper without rights, and writes to /var/lib/bookkeeper alone"):
            pid = self._state()["MainPID"]
            status = self._host.run("cat", f"/proc/{pid}/status").stdout
            rights = dict(re.findall(r"^(CapEff|CapBnd|NoNewPrivs|Seccomp|Uid):\s*(\w+)", status, re.MULTILINE))
            uid = self._host.run("id", "-u", "bookkeeper").stdout.strip()
            none = "0" * 16
            assert rights == {"Uid": uid, "CapEff": none, "CapBnd": none, "NoNewPrivs": "1", "Seccomp": "2"}, rights
            # Root, but in the mounts of the unit.
            touched = "for each in /etc /opt /var /var/lib /usr; do touch $each/x 2>/dev/null && echo $each; done; :"
            inside = ("nsenter", "--target", pid, "--mount", "sh", "-c")
            assert self._host.run(*inside, touched).stdout == ""
            self._host.run(*inside, "touch /var/lib/bookkeeper/x && rm /var/lib/bookkeeper/x")
            assert self._host.run("stat", "-c", "%U %a", "/var/lib/bookkeeper").stdout == "bookkeeper 750\n"

    def _kill_and_stop(self) -> None:
        with check("killed, it starts again after RestartSec, and replays") as figures:
            begin = time.monotonic()
            self._host.run("systemctl", "kill", "--signal=KILL", "bookie")
            self._wait_state(SubState="auto-restart", Result="signal")
            self._wait_state(NRestarts="1", SubState="running")
            figures.append(f"running after {time.monotonic() - begin:.0f} s")
            self._wait_ready()
            assert "replayed journal" in self._logged()
        with check("systemctl stop: in order, with status 0"):
            self._host.run("systemctl", "stop", "bookie")
            assert self._state()["Result"] == "success"
            self._wait_state(ActiveState="inactive", ExecMainStatus="0")

    def _logged(self, lines: int = 60) -> str:
        return self._host.run("journalctl", "--unit", "bookie", "--lines", str(lines), "--output", "cat").stdout

    def _without_zookeeper(self) -> None:
        with check("without ZooKeeper it goes on trying, and starts when ZooKeeper does"):
            self._host.run("systemctl", "stop", "zookeeper")
            self._host.run("systemctl", "start", "bookie")
            self._wait_state(SubState="auto-restart", Result="exit-code", ExecMainStatus="4")
            self._host.run("systemctl", "start", "zookeeper")
            self._wait_ready()

    def _what_a_person_must_mend(self) -> None:
        kept = self._conf.read_text()
        for what, changed, status in (
            ("a wrong configuration", kept + "bookiePort=x\n", "1"),
            ("a cookie of another bookie", kept.replace("Address=bookie1", "Address=192.0.2.1"), "5"),
        ):
            with check(f"{what}: status {status}, and it stays down"):
                assert changed != kept
                self._conf.write_text(changed)
                self._host.run("systemctl", "restart", "bookie", check=False)
                self._wait_state(ActiveState="failed", SubState="failed", ExecMainStatus=status, NRestarts="0")
        self._conf.write_text(kept)

    def _another_disk(self) -> None:
        """A bookie with another name, so that it has a cookie of its own."""
        disk = self._host.root / _DISK[1:]
        disk.mkdir()
        self._host.run("chown", "bookkeeper", _DISK)
        text = self._conf.read_text().replace("/var/lib/bookkeeper/", f"{_DISK}/")
        self._conf.write_text(text.replace("Address=bookie1", "Address=192.0.2.1"))
        with check("directories on another disk: refused without the drop-in, used with it"):
            self._host.run("systemctl", "restart", "bookie", check=False)
            self._wait_state(ActiveState="failed", ExecMainStatus="5")
            assert "Read-only file system" in self._logged(20), self._logged(20)
            drop_in = self._host.root / "etc/systemd/system/bookie.service.d/override.conf"
            drop_in.parent.mkdir()
            drop_in.write_text(f"[Unit]\nRequiresMountsFor={_DISK}\n[Service]\nReadWritePaths={_DISK}\n")
            self._host.run("systemctl", "daemon-reload")
            self._host.run("systemctl", "restart", "bookie")
            self._wait_ready()
            assert sorted(each.name for each in disk.iterdir()) == ["journal", "ledgers"]
            self._host.run("systemctl", "stop", "bookie")
