"""docs/client.md is run as printed."""

from __future__ import annotations

import re
from pathlib import Path

from bookie_server.local import LocalCluster

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
PRINTED_URI = "zk://127.0.0.1:2181/ledgers"


def test_every_block_runs(cluster: LocalCluster) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 7
    assert PRINTED_URI in blocks[0]
    program = "\n".join(blocks).replace(PRINTED_URI, cluster.metadata_service_uri)
    names: dict[str, object] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    assert names["seen"] == [b"one", b"two"]
