"""What ``bkctl`` imports before a command runs, and Ctrl-C meanwhile."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bk_spark.bkctl.command_line.common import ExitStatus
from bk_spark.bkctl.command_line.parser import commands_of, make_parser

pytestmark = pytest.mark.unit

#: What takes longer to import than bkctl itself.
SLOW = {"asyncio", "kazoo", "numpy", "pyarrow", "bk_spark.bookie.client", "bk_spark.log.log"}


def imported_by(*words: str) -> set[str]:
    """The modules that a new process of ``bkctl`` has at its end."""
    script = f"""
import sys
from bk_spark.bkctl import main

try:
    main({list(words)})
finally:
    print("modules:", *sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.partition("modules:")[2].split())


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("readlog", "--help")], ids=" ".join)
def test_help_and_version_import_no_client(words: tuple[str, ...]) -> None:
    assert not imported_by(*words) & SLOW


def test_a_command_imports_neither_logs_nor_the_modules_of_other_commands() -> None:
    names = imported_by("bookies", "--help")
    assert "bk_spark.bookie.client" in names
    assert not names & {"bk_spark.log.log", "bk_spark.log.store", "bk_spark.bkctl.ledgers", "bk_spark.overview"}


def test_commands_are_listed_alike_whether_their_modules_are_imported_or_not() -> None:
    assert make_parser([]).format_help() == make_parser().format_help()


@pytest.mark.parametrize("name", sorted(commands_of(make_parser([]))))
def test_a_command_line_that_names_a_command_can_be_parsed(name: str) -> None:
    """Its module adds it, so its parser has what the parser of all commands has."""
    assert commands_of(make_parser([name]))[name].format_help() == commands_of(make_parser())[name].format_help()


def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback() -> None:
    script = """
import signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "bk_spark.bookie.client":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
from bk_spark.bkctl import main

sys.exit(main(["bookies", "--metadata-service-uri", "zk://127.0.0.1:1/ledgers"]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (ExitStatus.INTERRUPTED, "", "")
