"""Spark's ``pyspark.daemon`` with everything imported that its workers need: run as a script in its place.

Spark forks a worker for nearly each step of a query: to make the data source, to plan a read or a write, to commit.
Each would import for half a second of CPU, more than the step itself takes. Tutorial and notebooks run Spark's own.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import shlex
import sys
from pathlib import Path

#: What the steps before a task and the tasks need: to make the data source, to plan, to write and read, to commit.
_STEPS = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyspark.sql.worker.plan_data_source_read",
    "bk_spark.datasource.batch.reader",
    "bk_spark.datasource.batch.writer",
    "bk_spark.datasource.options.parse",
    "bk_spark.datasource.planning",
    "bk_spark.datasource.source",
    "bk_spark.datasource.stream.reader",
    "bk_spark.datasource.stream.writer",
    "bk_spark.log.store",
)
#: Lists data sources, once in a session.
_LOOK_UP = "pyspark.sql.worker.lookup_data_sources"


def make_python(directory: Path) -> str:
    """A program for PYSPARK_PYTHON: this Python, with this module in place of Spark's daemon."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "python"
    python, script = shlex.quote(sys.executable), shlex.quote(__file__)
    program.write_text(
        # A thread of NumPy's would not survive the forks.
        f"#!/bin/sh\nexport OPENBLAS_NUM_THREADS=1\n"
        f'case "$*" in "-m pyspark.daemon"*) exec {python} {script} "$@";; *) exec {python} "$@";; esac\n'
    )
    program.chmod(0o755)
    return str(program)


def main() -> None:
    # As ``python -m`` has it. pyspark and py4j are installed here. Of Spark's own archives of them, each worker would
    # read the tables of contents twenty times (importlib.invalidate_caches).
    sys.path[:] = [os.getcwd(), *(path for path in sys.path[1:] if not path.endswith(".zip"))]
    _, _, name, *arguments = sys.argv
    for module in () if _LOOK_UP in arguments else (*arguments, *_STEPS):
        importlib.import_module(module)
    sys.argv = [name, *arguments]
    # After each task a worker looks for garbage: not in what it has from here, which it would have to copy.
    gc.freeze()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
