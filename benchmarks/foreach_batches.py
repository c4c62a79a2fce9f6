"""Measures the cost of a batch write in foreachBatch, with ``txnAppId`` and ``txnVersion``, in several tasks.

Reports the time of a write, writes per second, and ZooKeeper requests per write. With ``--peer`` the code of another
checkout (a git worktree of an older commit) is also measured, in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import figure
from bookie_server.local import LocalCluster

NAME: Final = "foreach_batches"
_WORKER: Final = Path(__file__).with_name("foreach_worker.py")


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--peer", type=Path, help="a checkout with other code, measured in the same run")
    options = parser.parse_args(arguments)
    codes = {"now": Path(__file__).parents[1]}
    if options.peer is not None:
        codes = {"peer": options.peer, **codes}
    medians = {}
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=1, start_timeout_ms=120_000) as cluster,
    ):
        for name, code in codes.items():
            (Path(directory) / name).mkdir()
            ran = subprocess.run(
                [
                    *(sys.executable, str(_WORKER), cluster.metadata_service_uri, name, f"{directory}/{name}"),
                    *map(str, (options.tasks, options.batches)),
                ],
                # Spark's workers search the working directory for modules first.
                cwd=code,
                env={**os.environ, "PYTHONPATH": str(code)},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            told = json.loads(ran.stdout.splitlines()[-1])
            took_s = told["took_s"]
            medians[name] = statistics.median(took_s)
            figure(NAME, f"{name}.write", medians[name] * 1000, "ms", fastest_ms=round(min(took_s) * 1000, 1))
            figure(NAME, f"{name}.rate", len(took_s) / sum(took_s), "writes/s", tasks=options.tasks)
            figure(NAME, f"{name}.zookeeper", told["requests"] / len(took_s), "requests a write")
    if "peer" in medians:
        figure(NAME, "faster", medians["peer"] / medians["now"], "ratio")


if __name__ == "__main__":
    main(sys.argv[1:])
