"""``python -m benchmarks [name [options]]``: run all benchmarks, or one."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path

_HELPERS = {
    "__main__",
    "report",
    "processes",
    "ledger_clients",
    "ledger_cluster",
    "ledger_figures",
    "ledger_worker",
    "kafka_broker",
    "stream_peers",
    "long_logs",
    "discarding_sink",
}
#: What a benchmark gets where all are run: its full form takes too long for that.
_AMONG_ALL = {"ledger": ["--quick"]}


def main() -> int:
    # Spark's workers must be of the Python that runs this.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name not in _HELPERS)
    wanted = sys.argv[1:2] or names
    if wanted[0] not in names:
        print(f"unknown benchmark {wanted[0]!r}; known are {', '.join(names)}", file=sys.stderr)
        return 2
    for name in wanted:
        arguments = sys.argv[2:] if len(sys.argv) > 1 else _AMONG_ALL.get(name, [])
        importlib.import_module(f"benchmarks.{name}").main(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
