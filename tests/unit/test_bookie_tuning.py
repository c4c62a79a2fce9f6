"""How a bookie's process is set up."""

from __future__ import annotations

import subprocess
import sys


def test_n1_collections_of_everything_are_rare_and_leave_out_the_modules() -> None:
    """Each stops the event loop, for 20 ms where there is nothing but the modules."""
    script = (
        "import gc; from bookie_server import process; process._tune_process(); "
        "print(gc.get_threshold()[2], gc.get_freeze_count(), len(gc.get_objects()))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    rarely, frozen, others = map(int, told.stdout.split())
    assert rarely >= 100
    assert frozen > 20 * others
