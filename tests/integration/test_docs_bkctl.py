"""docs/bkctl.md is run as printed."""

from __future__ import annotations

import doctest
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bk_spark.bkctl import main
from bk_spark.bkctl.command_line.common import ExitStatus
from bk_spark.log.verification import Kind
from bookie_server.local import LocalCluster
from bookie_server.offline.consistency import ProblemKind
from bookie_server.offline.journals import RecordKind

PAGE = Path(__file__).parents[2] / "docs" / "bkctl.md"


def test_every_command_does_what_is_printed(
    cluster: LocalCluster,
    fresh_root: str,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 1
    commands = re.findall(r"\$ (?:(.*) \| )?bkctl (.*)\n((?:(?!\$ ).*\n)*)", blocks[0])
    assert len(commands) == blocks[0].count("$ ")
    monkeypatch.setenv("BK_METADATA_SERVICE_URI", cluster.metadata_service_uri)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for source, command, printed in commands:
        fed = subprocess.run(source, shell=True, capture_output=True, check=True, timeout=60).stdout if source else b""
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(fed)))
        assert main(["--log-root", fresh_root, *shlex.split(command)]) == 0
        out, error = capsysbinary.readouterr()
        assert error == b""
        assert doctest.OutputChecker().check_output(printed, out.decode(), flags), f"{command}\n{out.decode()}"


def test_every_status_and_problem_is_there() -> None:
    text = PAGE.read_text("utf-8")
    assert set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE)) == {str(status.value) for status in ExitStatus}
    assert words_of_tables("Verify a log") == {kind.value for kind in Kind}
    assert words_of_tables("Files of a stopped bookie") == {kind.value for kind in (*RecordKind, *ProblemKind)}


def words_of_tables(chapter: str) -> set[str]:
    """What stands in the first column of the chapter's tables."""
    (text,) = re.findall(rf"^## {chapter}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return set(re.findall(r"^\| `([a-z][a-z-]+)` \|", text, re.MULTILINE))
