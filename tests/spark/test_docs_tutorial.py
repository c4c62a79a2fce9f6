"""README's "Use it" and docs/tutorial.md are run as printed: one after the other, in one directory, with a virtual
environment that has what pip installs and is not activated."""

from __future__ import annotations

import doctest
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.environments import REPOSITORY, environment_variables, make_environment
from tests.support.servers import spark_environment

README = REPOSITORY / "README.md"
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"
INSTALL = ["python3 -m venv .venv", ".venv/bin/pip install '.[spark]'"]
SERVER = ".venv/bin/bookie-server local --bookies 3 --zk-port 2181 --dir /tmp/bookkeeper"
EXPORT = "export PYSPARK_PYTHON=$PWD/.venv/bin/python"
URI = "zk+hierarchical://127.0.0.1:2181/ledgers"
CHECKPOINT = "/tmp/large-orders-checkpoint"
END = "the command ended with status"
_END_TIMEOUT_S = 120

#: Runs blocks of code that it is sent, each after its length.
SESSION = f"""
import sys
names = {{"__name__": "__main__"}}
while size := int(sys.stdin.buffer.readline() or 0):
    exec(compile(sys.stdin.buffer.read(size), "a block of the page", "exec"), names)
    print("{END} 0", flush=True)
"""


class Process:
    """Takes one command after the other; each must end well."""

    def __init__(self, command: list[str], directory: Path, **more: str) -> None:
        options = f"{spark_environment()['SPARK_SUBMIT_OPTS']} -Dspark.ui.enabled=false"
        variables = environment_variables(SPARK_SUBMIT_OPTS=options, **more)
        with (directory / f"{Path(command[0]).name}.err").open("a") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def result(self, what: str) -> str:
        """What was printed."""
        assert self.process.stdout is not None
        printed = []
        for line in self.process.stdout:
            if line.startswith(END):
                assert line == f"{END} 0\n", f"{what}: {line}{''.join(printed)}"
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"{what}: the process ended; it printed {''.join(printed)}")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(_END_TIMEOUT_S)
        self.process.stdout.close()


class Shell(Process):
    """A shell with jobs."""

    def __init__(self, directory: Path) -> None:
        super().__init__(["bash"], directory)
        self.run("set -m")

    def run(self, command: str) -> str:
        self.send(f"{command}\necho {END} $?\n")
        return self.result(command)

    def close(self) -> None:
        """Ends its jobs, too."""
        self.send("kill -9 $(jobs -p)\nwait\n")
        super().close()


class Session(Process):
    """Python as the page starts it."""

    def __init__(self, directory: Path, shell: Shell) -> None:
        workers = shell.run("echo $PYSPARK_PYTHON").strip()
        super().__init__([str(directory / ".venv/bin/python"), "-c", SESSION], directory, PYSPARK_PYTHON=workers)

    def run(self, block: str) -> str:
        self.send(f"{len(block.encode())}\n{block}")
        return self.result(block)

    def forget(self) -> None:
        """Begin anew with its names. Spark's session stays."""
        self.run("for name in [*globals()]: name.startswith('__') or globals().pop(name)")


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """The cluster of the pages, on a port of its own; its URI."""
    command = SERVER.replace("/tmp/bookkeeper", str(directory / "cluster")).replace(" --zk-port 2181", "").split()
    with subprocess.Popen(
        command, cwd=directory, env=environment_variables(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.fullmatch(r"metadataServiceUri: (\S+)\n", line):
                    yield found[1]
                    return
            raise AssertionError("the cluster did not start")
        finally:
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            process.wait(_END_TIMEOUT_S)


@contextmanager
def closing_both(directory: Path) -> Iterator[tuple[Shell, Session]]:
    shell = Shell(directory)
    try:
        shell.run(EXPORT)
        session = Session(directory, shell)
        try:
            yield shell, session
        finally:
            session.close()
    finally:
        shell.close()


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    return re.findall(rf"```({'|'.join(languages)})\n(.*?)```", text, re.DOTALL)


@pytest.mark.turns(3)
@pytest.mark.timeout(1_800)
def test_use_it_and_then_the_tutorial_in_one_directory_with_an_environment_that_is_not_activated(
    tmp_path: Path, wheel: Path
) -> None:
    make_environment(tmp_path / ".venv", wheel, "spark")
    use_it = README.read_text("utf-8").partition("## Use it")[2].partition("\n## ")[0]
    tutorial = TUTORIAL.read_text("utf-8")
    for page in (use_it, tutorial):
        lines = [line.partition("  #")[0].rstrip() for _, block in blocks(page, "sh") for line in block.splitlines()]
        assert lines[:3] == [*INSTALL, SERVER]
    assert lines_of(use_it)[3:] == [EXPORT, ".venv/bin/python"]
    assert f"$ {EXPORT}\n" in tutorial

    with server(tmp_path) as uri:
        # What the server prints is what the pages say.
        assert re.sub(r":\d+/", ":2181/", uri) == URI
        use_it, tutorial = (page.replace(URI, uri) for page in (use_it, tutorial))
        assert uri in use_it
        assert not re.search(r"zk\S*://\S*2181", use_it + tutorial)
        tutorial = tutorial.replace(CHECKPOINT, str(tmp_path / "checkpoint"))
        with closing_both(tmp_path) as (shell, session):
            ((_, program),) = blocks(use_it, "python")
            assert len(re.findall(r"^\|\s+\d+\|\s*\d+\.\d+", session.run(program), re.MULTILINE)) == 20
            # A session costs as much as all that the README does in it. The tutorial goes on in this one.
            session.forget()
            for language, block in blocks(tutorial, "python", "console"):
                if language == "console":
                    run_console(shell, block)
                elif found := re.match(r"# (\w+\.py)\n", block):
                    (tmp_path / found[1]).write_text(block)
                else:
                    session.run(block)
            session.run("assert read and found and some")


def lines_of(page: str) -> list[str]:
    return [line for _, block in blocks(page, "sh") for line in block.splitlines()]


def run_console(shell: Shell, block: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for command, expected in re.findall(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", block):
        printed = shell.run(command)
        assert doctest.OutputChecker().check_output(expected, printed, flags), f"{command}\n{printed}"
