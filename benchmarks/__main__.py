"""``python -m benchmarks [name [options]]``: run all benchmarks, or one."""

from __future__ import annotations

import importlib
import sys
from typing import Final

#: Arguments of each benchmark when all are run: the full form of some takes too long. Other modules are helpers.
_BENCHMARKS: Final[dict[str, list[str]]] = {
    "autorecovery": ["--quick"],
    "bookie": ["--quick"],
    "bookie_raw": [],
    "bookie_restart": ["--quick"],
    "bookie_soak": ["--quick"],
    "commit_contention": [],
    "compaction": ["--quick"],
    "crash_duplicates": [],
    "foreach_batches": [],
    "growth": ["--quick"],
    "large_removals": ["--megabytes", "64", "--rounds", "1"],
    "ledger": ["--quick"],
    "ledger_copy": [],
    "log_list": [],
    "log_writer": [],
    "many_ledgers": [],
    "message_format": [],
    "past_reads": ["--commits", "500"],
    "projection": [],
    "pulsar_read": [],
    "pulsar_decode": [],
    "recovery": ["--quick"],
    "rights": [],
    "scan": ["--quick"],
    "slow_callers": ["--quick"],
    "small_tasks": ["--rounds", "1"],
    "spark_batch": [],
    "spark_peers": ["--rounds", "1", "--scale", "0.2"],
    "stalled_peers": ["--quick"],
    "stream_batches": [],
    "stream_driver": [],
    "stream_latency": [],
    "task_memory": ["--rounds", "1", "--scale", "0.2"],
    "tiny_segments": [],
    "tls": [],
    "transports": [],
}


def main() -> int:
    name, *arguments = sys.argv[1:] or [""]
    if name and name not in _BENCHMARKS:
        print(f"unknown benchmark {name!r}; known are {', '.join(_BENCHMARKS)}", file=sys.stderr)
        return 2
    for each, its_arguments in ({name: arguments} if name else _BENCHMARKS).items():
        importlib.import_module(f"benchmarks.{each}").main(its_arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
