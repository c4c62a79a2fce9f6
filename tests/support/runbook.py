"""A page of procedures for operators, and a cluster on which its commands run as printed.

A block ``console`` of the page holds commands and what they print. The prompt names the host: ``bookie2$``, ``zk1$``,
or ``$`` for any host. The page's names of hosts, ports and directories stand for those of :class:`RunbookCluster`.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from bk_spark import BlockingClient
from bk_spark.bkctl import main
from bk_spark.bookie.metadata.ledger_ids import coming_ledger_id
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bookie_server.local import LOOPBACK
from bookie_server.local.process import GuardedProcessGroup, LocalProcess
from bookie_server.local.state import DirectoryLock, PortChooser
from tests.support.admin import BEARER, token_file
from tests.support.nursery import QuickCluster, QuickGroup
from tests.support.servers import start_timeout_ms

PAGE: Final = Path(__file__).parents[2] / "docs" / "operations.md"
#: Directories that the page names, and files below them. Each host has its own.
_PATHS: Final = re.compile(
    r"(?<![\w./])(/etc/bookkeeper|/disk[123]|/var/lib/zookeeper|/backup)(?=[/\s,]|$)", re.MULTILINE
)
_FLAGS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: These only show something. They are repeated until they show what is printed.
_SHOWS: Final = re.compile(
    r"bkctl (bookies|autorecovery status|listunderreplicated|whoisauditor|ledger list)|curl (?!.*-X)|echo srvr"
)
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2
#: Faster than on the page: sessions end soon, and workers look for work often.
_FAST: Final = {
    "allowLoopback": "true",
    "listeningInterface": "lo",
    "httpServerHost": LOOPBACK,
    "zkTimeout": "3000",
    "rwRereplicateBackoffMs": "200",
    "openLedgerRereplicationGracePeriod": "1000",
    "journalPreAllocSizeMB": "1",
    "diskUsageThreshold": "0.999",
    "diskUsageWarnThreshold": "0.999",
    "minUsableSizeForEntryLogCreation": "1",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command at a host's prompt ("" for any host), and what it prints."""

    host: str
    text: str
    printed: str


def procedures() -> dict[str, list[list[Command]]]:
    """The blocks of commands below each heading of the page that has some."""
    found: dict[str, list[list[Command]]] = {}
    for part in re.split(r"^##+ ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"```console\n(.*?)```", part, re.DOTALL)
        if blocks:
            found[part.partition("\n")[0]] = [_commands(block) for block in blocks]
    return found


def _commands(block: str) -> list[Command]:
    parts = re.split(r"^(\w*)\$ (.*)\n", block, flags=re.MULTILINE)
    assert not parts[0], f"no prompt: {parts[0]}"
    return [Command(*parts[start : start + 3]) for start in range(1, len(parts), 3)]


class Host(LocalProcess):
    """A machine with one bookie, which ``systemctl`` starts. Its configuration is the operator's."""

    def __init__(
        self, name: str, directory: Path, group: GuardedProcessGroup, ports: tuple[int, int], conf: str
    ) -> None:
        super().__init__(name, directory, group, "bookie.log")
        self.id = f"{LOOPBACK}:{ports[0]}"
        self.http = f"http://{LOOPBACK}:{ports[1]}"
        for each in ("disk1", "disk2", "disk3", "bookkeeper"):
            (directory / each).mkdir(parents=True)
        self._conf_path.write_text(conf, "utf-8")
        token_file(directory / "bookkeeper")

    @property
    def _conf_path(self) -> Path:
        return self.directory / "bookkeeper" / "bk_server.conf"

    def wait_ended_by_itself(self) -> int | None:
        """Wait until the bookie has ended without being told. Return the exit status."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.running:
            assert time.monotonic() < deadline, self.log_tail()
            time.sleep(0.05)
        return self.exit_code

    def held(self) -> set[int]:
        """The ledgers whose index files are in the bookie's directories."""
        return {int(path.stem, 16) for path in self.directory.rglob("*.idx")}

    def _prepare(self) -> None:
        pass

    def _command(self) -> Sequence[str]:
        return (sys.executable, "-m", "bookie_server", "start", "--conf", str(self._conf_path))


class RunbookCluster:
    """ZooKeeper, ``bookies`` that run, and ``spare`` ones that were never started. A context manager."""

    def __init__(self, directory: Path, *, bookies: int, spare: int = 0, zookeepers: int = 1, **settings: str) -> None:
        self.directory = directory
        self._counts = bookies, bookies + spare
        self._settings = {**_FAST, **settings}
        self._local = QuickCluster(directory / "zk", 0, zookeepers, start_timeout_ms=start_timeout_ms())
        self.hosts: list[Host] = []
        self.zookeepers = self._local.zookeepers

    @property
    def uri(self) -> str:
        return self._local.metadata_service_uri

    def __enter__(self) -> RunbookCluster:
        self._local.start()
        self.zookeepers = self._local.zookeepers
        # The page's host without a name, "$", has the header that curl sends.
        (self.directory / "hosts" / "bookkeeper").mkdir(parents=True)
        header = "".join(f"{name}: {value}\n" for name, value in BEARER.items())
        (self.directory / "hosts" / "bookkeeper" / "admin-header").write_text(header)
        self._lock = DirectoryLock(self.directory / "hosts")
        self._group = QuickGroup(self._lock.fd)
        running, count = self._counts
        chooser = PortChooser({server.port for server in self.zookeepers})
        # The page lists bookies in the order of their numbers.
        for number, port in enumerate(sorted(chooser.choose() for _ in range(count)), 1):
            name = f"bookie{number}"
            directory, ports = self.directory / "hosts" / name, (port, chooser.choose())
            self.hosts.append(Host(name, directory, self._group, ports, self._conf(directory, *ports)))
        for host in self.hosts[:running]:
            host.start()
        self.wait_writable(self.hosts[:running])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for host in self.hosts:
            host.kill()
        self._group.close()
        self._lock.release()
        self._local.stop()

    def wait_writable(self, hosts: Sequence[Host]) -> None:
        """Wait until these bookies, and no others, are writable."""
        wanted = {host.id for host in hosts}
        deadline = time.monotonic() + start_timeout_ms() / 1000
        while {line.split()[0] for line in self.bkctl("bookies").splitlines() if " writable " in line} != wanted:
            ended = [host for host in hosts if not host.running]
            assert not ended, ended[0].failure("a bookie ended")
            assert time.monotonic() < deadline
            time.sleep(_PAUSE_S)

    def bkctl(self, *arguments: str) -> str:
        """What a command prints, errors included."""
        return self._bkctl(arguments)[1]

    def bookie_metrics(self, number: int) -> str:
        with urllib.request.urlopen(f"{self.hosts[number - 1].http}/metrics", timeout=30) as answer:
            return answer.read().decode()  # type: ignore[no-any-return]

    def named_by(self, ledger_ids: Sequence[int], host: Host) -> list[int]:
        """Those of the ledgers that name the bookie."""
        with BlockingClient(self.uri) as client:
            return [i for i in ledger_ids if any(host.id in s.ensemble for s in client.metadata(i).segments)]

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        with BlockingClient(self.uri) as client:
            return client.metadata(ledger_id)

    def coming_ledger_id(self) -> int:
        with BlockingClient(self.uri) as client:
            return coming_ledger_id(client.zookeeper, client.root, LedgerManager.HIERARCHICAL)

    def run(self, block: list[Command], **values: str) -> list[str]:
        """Run the commands one after another, and compare what they print. Return it. ``values`` replace the words in
        capital letters that stand for them on the page."""
        return [self._run(command, values) for command in block]

    def _run(self, command: Command, values: dict[str, str]) -> str:
        text = self._to_real(command.text, command.host, values)
        expected = command.printed
        for name, value in values.items():
            expected = expected.replace(name, value)
        deadline = time.monotonic() + (_PATIENCE_S if _SHOWS.match(command.text) else 0)
        while True:
            ok, real = self._perform(text, command.host)
            printed = self._to_page(real)
            if ok and _agrees(command, expected, printed):
                return printed
            assert time.monotonic() < deadline, f"{command.host}$ {command.text}\nprints\n{printed}"
            time.sleep(_PAUSE_S)

    def _perform(self, text: str, host: str) -> tuple[bool, str]:
        """Run one command. Return whether its exit status was 0, and what it printed."""
        match shlex.split(text):
            case ["systemctl", action, unit]:
                self._systemctl(host, action, unit)
                return True, ""
            case ["bkctl", *arguments]:
                return self._bkctl(arguments)
            case ["curl", "-s", *arguments]:
                return _curl(arguments)
            case ["echo", "srvr", "|", "nc", server, "2181"]:
                return self._srvr(int(server.removeprefix("zk")))
        done = subprocess.run(
            ["sh", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_PATIENCE_S
        )
        return done.returncode == 0, done.stdout

    def _systemctl(self, host: str, action: str, unit: str) -> None:
        server: LocalProcess = self.hosts[int(host[-1]) - 1] if unit == "bookie" else self.zookeepers[int(host[-1]) - 1]
        if action == "start":
            server.start()
        else:
            assert action == "stop"
            server.terminate()

    def _bkctl(self, arguments: Sequence[str]) -> tuple[bool, str]:
        printed = io.BytesIO()
        out = io.TextIOWrapper(printed, "utf-8", write_through=True)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = main(["--metadata-service-uri", self.uri, *arguments])
        return status == 0, printed.getvalue().decode()

    def _srvr(self, number: int) -> tuple[bool, str]:
        try:
            with (
                socket.create_connection((LOOPBACK, self.zookeepers[number - 1].port), timeout=30) as connection,
                connection.makefile("rb") as answer,
            ):
                connection.sendall(b"srvr")
                return True, answer.read().decode()
        except OSError as error:
            return False, f"{error}\n"

    # --- names of the page, and real ones ---

    def _conf(self, directory: Path, port: int, http_port: int) -> str:
        """The configuration that the page shows, with faster settings."""
        (shown,) = re.findall(r"```properties\n(metadataServiceUri=.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        keys = dict(line.split("=", 1) for line in shown.splitlines())
        keys |= {"metadataServiceUri": self.uri, "bookiePort": str(port), "advertisedAddress": LOOPBACK}
        keys |= {"httpServerPort": str(http_port), **self._settings}
        lines = "".join(f"{key}={value}\n" for key, value in keys.items())
        return _PATHS.sub(lambda found: str(directory / found[0].rpartition("/")[2]), lines)

    def _directory(self, path: str, host: str) -> Path:
        if path == "/backup":
            return self.directory / "backup"
        if path == "/var/lib/zookeeper":
            return self.zookeepers[int(host[-1]) - 1].directory / "data"
        return self.directory / "hosts" / host / path.rpartition("/")[2]

    def _to_real(self, text: str, host: str, values: dict[str, str]) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        text = re.sub(r"http://bookie(\d):8080", lambda found: self.hosts[int(found[1]) - 1].http, text)
        text = re.sub(r"bookie(\d):3181", lambda found: self.hosts[int(found[1]) - 1].id, text)
        return _PATHS.sub(lambda found: str(self._directory(found[0], host)), text)

    def _to_page(self, text: str) -> str:
        for number, each in enumerate(self.hosts, 1):
            text = text.replace(each.id, f"bookie{number}:3181")
        return text


def _agrees(command: Command, expected: str, printed: str) -> bool:
    """Whether a command prints what the page shows. ``...`` stands for line ends, too, but in the list of bookies each
    row is that of one bookie: its state is not the next one's."""
    checker = doctest.OutputChecker()
    if not checker.check_output(expected, printed, _FLAGS):
        return False
    rows = expected.splitlines() if command.text == "bkctl bookies" else []
    return all(any(checker.check_output(row, found, _FLAGS) for found in printed.splitlines()) for row in rows)


def _curl(arguments: list[str]) -> tuple[bool, str]:
    """``curl -s``: whether the status was 200, and the content. A server that is about to start is waited for."""
    method, body, headers, url = "GET", None, {}, arguments[-1]
    if len(arguments) > 1:
        flag, method, header, file, data, content, _ = arguments
        assert (flag, header, data) == ("-X", "-H", "-d")
        assert file.startswith("@")
        name, value = Path(file[1:]).read_text("utf-8").strip().split(": ")
        headers, body = {name: value}, content.encode()
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, body, headers, method=method), timeout=30
            ) as answer:
                return True, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return False, error.read().decode()
        except urllib.error.URLError:
            assert time.monotonic() < deadline, f"no answer: {url}"
            time.sleep(_PAUSE_S)
