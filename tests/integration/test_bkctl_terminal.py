"""``bkctl`` at a terminal: it asks before rows go, draws how far it has come, and completes words in shells."""

from __future__ import annotations

import functools
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import Log, LogStore
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from tests.support.machine import cannot_run

BKCTL = (sys.executable, "-m", "bk_spark.bkctl")


class Terminal:
    """A process at a terminal of its own: what it prints, and what is typed."""

    def __init__(self, command: Sequence[str], *, stdout: int | None = None) -> None:
        self._side, other = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other if stdout is None else stdout, stderr=other, start_new_session=True
        )
        os.close(other)
        self.printed = ""

    def until(self, pattern: str, timeout_s: float = 60) -> str:
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.printed):
            assert time.monotonic() < deadline, f"no {pattern} in {self.printed!r}"
            assert self._read(1), f"ended without {pattern}: {self.printed!r}"
        return self.printed

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def ended(self) -> int:
        while self._read(60):
            pass
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self._side)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._side], [], [], timeout_s)[0]:
            return self.process.poll() is None
        try:
            data = os.read(self._side, 65536)
        except OSError:
            return False
        self.printed += data.decode()
        return bool(data)


@contextmanager
def terminal(*command: str, stdout: int | None = None) -> Iterator[Terminal]:
    one = Terminal(command, stdout=stdout)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def log(metadata_service_uri: str, fresh_root: str) -> Iterator[Log]:
    """Three ledgers of ten entries."""
    with BlockingClient(metadata_service_uri) as client:
        settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
        log = LogStore.of(client, fresh_root).create_log("events", settings, b"")
        for _ in range(3):
            writer = client.create()
            writer.append_many([b"x"] * 10)
            writer.close()
            log.append_ledger(writer.ledger_id)
        yield log


@pytest.fixture
def shared(metadata_service_uri: str, fresh_root: str) -> list[str]:
    return ["--metadata-service-uri", metadata_service_uri, "--log-root", fresh_root]


def test_at_a_terminal_a_truncation_asks_and_only_yes_goes_on(log: Log, shared: list[str]) -> None:
    for answer, status, first_offset in (("\n", 1, 0), ("no\n", 1, 0), ("y\n", 0, 10)):
        with terminal(*BKCTL, "log", "truncate", "events", "15", *shared) as asked:
            asked.until(r"10 entries \(offsets 0 to 10; .*\) would be dropped, for good\. Go on\? \[y/N\] $")
            asked.type(answer)
            assert asked.ended() == status
            assert ("not confirmed; nothing was changed" in asked.printed) is (status == 1)
        assert log.snapshot().first_offset == first_offset


def test_top_is_refreshed_until_it_is_interrupted(log: Log, shared: list[str]) -> None:
    with terminal(*BKCTL, "top", "--interval", "1", *shared) as shown:
        shown.until(r"(?s)\x1b\[\?25l.*events +30 +- .*events +30 +0\.0 ")
        os.kill(shown.process.pid, signal.SIGINT)
        assert shown.ended() == 0
    # The cursor is there again.
    assert shown.printed.endswith("\x1b[?25h")


def test_without_a_terminal_nobody_is_asked_and_nothing_goes(log: Log, shared: list[str]) -> None:
    for command in (["truncate", "events", "15"], ["delete", "events"]):
        done = subprocess.run(
            [*BKCTL, "log", *command, *shared], input="y\n", capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1
        assert "give --yes to do so" in done.stderr
    assert log.snapshot().first_offset == 0


@pytest.mark.parametrize(
    ("command", "bar"),
    [
        (("verify", "events"), r"entries \[#+\] 100%  30 of 30\r\x1b\[K"),
        (("verify", "events", "--no-entries"), r"ledgers \[-+\]   0%  0 of 3\r\x1b\[K"),
        (("gc", "events", "--dry-run"), r"applications \[-+\]   0%  0 of 1, 0 ledgers condemned, 0 deleted\r\x1b\[K"),
    ],
)
def test_verify_and_gc_draw_how_far_they_are_on_a_terminal_only(
    log: Log, shared: list[str], tmp_path: Path, command: tuple[str, ...], bar: str
) -> None:
    log.ledger_registrar("app", "run")
    output = tmp_path / "out"
    with output.open("wb") as out, terminal(*BKCTL, "log", *command, *shared, stdout=out.fileno()) as drawn:
        drawn.until(bar)
        assert drawn.ended() == 0
    assert "\x1b" not in output.read_text()
    assert output.read_text()
    done = subprocess.run([*BKCTL, "log", *command, *shared], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


@functools.cache
def completion(shell: str) -> str:
    return subprocess.run([*BKCTL, "completion", shell], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("l",), {"ledger", "log"}),
        (("--metadata-service-uri", "x", "log", "tr"), {"truncate"}),
        (("log", "--json", "truncate", "events", "--"), {"--yes", "--dry-run", "--json", "--help"}),
        (("log", "create", "events", "--digest-type", "C"), {"CRC32", "CRC32C"}),
        (("log", "read", "events", "--password-file", "{file}"), {"{file} one", "{file} two"}),
        (("re",), {"recover"}),
        (("recover", "b1:3181", "--l"), {"--ledgers-at-once", "--lock-wait", "--log-root"}),
        (("decommission", "b1:3181", "--f"), {"--force"}),
        (("completion", ""), {"bash", "zsh", "--json"}),
        (("log", "read", "events", "--from", ""), set()),
    ],
)
def test_bash_completes_commands_options_and_values(words: tuple[str, ...], expected: set[str], tmp_path: Path) -> None:
    for name in ("my one", "my two"):
        (tmp_path / name).touch()
    file = str(tmp_path / "my")
    typed = ["bkctl", *(word.format(file=file) for word in words)]
    script = (
        f'{completion("bash")}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _bkctl; printf \'%s\\n\' "${{COMPREPLY[@]}}"'
    )
    found = subprocess.run(["bash", "-c", script, "bash", *typed], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    lines = {line for line in found.stdout.splitlines() if line}
    wanted = {word.format(file=file) for word in expected}
    assert wanted <= lines if expected else not lines
    if words[-1] != "--":
        assert all(line.startswith(typed[-1]) for line in lines)


def test_zsh_completes_commands_options_and_values(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        cannot_run("no zsh: scripts/ensure_test_programs.sh installs it, or says how")
    (tmp_path / "completion").write_text(completion("zsh"))
    with terminal("zsh", "-f", "-i") as shell:
        shell.type("PS1='ready> '; autoload -U compinit; compinit -D -u; echo loaded-$?\n")
        shell.until(r"loaded-0\r\n")
        shell.type(f'source {tmp_path}/completion; bkctl() {{ echo "ran:$*:" }}; echo sourced-$?\n')
        shell.until(r"sourced-0\r\n")
        for typed, ran in (
            ("bkctl log trunc\t5\n", "ran:log truncate 5:"),
            ("bkctl --log-root /x log verify e --no-\t\n", "ran:--log-root /x log verify e --no-entries:"),
            ("bkctl log create e --digest-type HM\t\n", "ran:log create e --digest-type HMAC:"),
        ):
            shell.type(typed)
            shell.until(re.escape(ran))
        shell.type("exit\n")
        shell.ended()
