"""Runs notebooks, each from a clean kernel, and keeps their outputs in the files: ``make notebooks``.

Arguments: the notebooks; none for all in this directory. Ends with status 1 where a cell fails; that notebook's file
then stays as it was.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

_CELL_TIMEOUT_S = 900


def run(path: Path) -> None:
    """Run it where it lies, with nothing of the user's own settings."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=_CELL_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    # What the kernel leaves there goes too, should it be ended before it has cleaned up.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as files:
        client.execute(env={**os.environ, "IPYTHONDIR": files, "TMPDIR": files})
    # The same on every machine.
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def main(arguments: list[str]) -> int:
    # Its paths are those of a later release already, without a warning.
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    failed = False
    for path in [Path(name) for name in arguments] or sorted(Path(__file__).parent.glob("*.ipynb")):
        started = time.monotonic()
        try:
            run(path.resolve())
        except CellExecutionError as error:
            failed = True
            print(f"{path.name} failed:\n{error}", file=sys.stderr)
        else:
            print(f"{path.name}: {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
