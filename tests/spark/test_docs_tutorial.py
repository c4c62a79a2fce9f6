"""docs/tutorial.md is run as printed, from the start of its cluster on."""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.servers import spark_environment

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
PRINTED_URI = "zk://127.0.0.1:2181/ledgers"
PRINTED_SERVER = "bookie-server local --bookies 3 --zk-port 2181 --dir /tmp/bookkeeper"
PRINTED_CHECKPOINT = "/tmp/large-orders-checkpoint"
END = "the command ended with status"


class Shell:
    """Commands of one shell with jobs, in ``directory``, one after the other."""

    def __init__(self, directory: Path) -> None:
        # Errors: where it tells of jobs that were killed.
        with (directory / "shell.err").open("w") as errors:
            self._process = subprocess.Popen(
                ["bash"],
                cwd=directory,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.run("set -m")

    def run(self, command: str) -> str:
        """What it printed. It must end well."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(command, f"echo {END} $?", sep="\n", file=self._process.stdin, flush=True)
        printed = []
        for line in self._process.stdout:
            if line.startswith(END):
                assert line == f"{END} 0\n", f"{command}: {line}{''.join(printed)}"
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"{command}: the shell ended")

    def close(self) -> None:
        """Ends its jobs, too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("kill -9 $(jobs -p)", "wait", sep="\n", file=self._process.stdin, flush=True)
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def environment() -> dict[str, str]:
    """As in an activated virtual environment."""
    return {**spark_environment(), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """The cluster of the page, with ports of its own; its URI."""
    command = [
        *PRINTED_SERVER.replace("/tmp/bookkeeper", str(directory / "cluster")).replace(" --zk-port 2181", "").split()
    ]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
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
            process.wait(60)


@pytest.mark.timeout(900)
def test_every_example(spark: SparkSession, tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    assert PRINTED_SERVER in text
    with server(tmp_path) as uri:
        text = text.replace(PRINTED_URI, uri).replace(PRINTED_CHECKPOINT, str(tmp_path / "checkpoint"))
        shell = Shell(tmp_path)
        names: dict[str, object] = {}
        try:
            for language, block in re.findall(r"```(python|console)\n(.*?)```", text, re.DOTALL):
                if language == "console":
                    run_console(shell, block)
                elif found := re.match(r"# (\w+\.py)\n", block):
                    (tmp_path / found[1]).write_text(block)
                else:
                    exec(compile(block, str(PAGE), "exec"), names)
        finally:
            shell.close()
            for name in ("large", "all_orders"):
                spark.catalog.dropTempView(name)
    assert {"read", "found", "some"} <= set(names)


def run_console(shell: Shell, block: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for command, expected in re.findall(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", block):
        printed = shell.run(command)
        assert doctest.OutputChecker().check_output(expected, printed, flags), f"{command}\n{printed}"
