"""docs/logs.md, docs/tables.md, and what the README says of logs without Spark, are run as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bookie_server.local import LocalCluster

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "logs.md"
PRINTED_URI = "zk://127.0.0.1:2181/ledgers"


def test_every_block_runs(cluster: LocalCluster) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 8
    assert PRINTED_URI in blocks[0]
    program = "\n".join(blocks).replace(PRINTED_URI, cluster.metadata_service_uri)
    names: dict[str, object] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    assert names["followed"] == [b"fourth", b"fifth", b"sixth", b"seventh", b"last"]


def test_every_block_of_the_page_on_tables_runs(cluster: LocalCluster) -> None:
    page = REPOSITORY / "docs" / "tables.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 9
    assert PRINTED_URI in blocks[0]
    program = "\n".join(blocks).replace(PRINTED_URI, cluster.metadata_service_uri)
    names: dict[str, object] = {}
    exec(compile(program, str(page), "exec"), names)
    assert names["total"] == 24.5


def test_the_readme_s_program_without_spark_runs(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    section = (REPOSITORY / "README.md").read_text("utf-8").partition("## Without Spark")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    uri = "zk+hierarchical://127.0.0.1:2181/ledgers"
    assert uri in program
    exec(compile(program.replace(uri, cluster.metadata_service_uri), "README.md", "exec"), {})
    assert capsys.readouterr().out == "19.5\n[b'first', b'second']\n"
