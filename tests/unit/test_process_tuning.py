"""What a bookie does before it serves, so that its event loop need not do it later."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_PROGRAM: Final = """
import sys
from bookie_server.disks.open_files import share_connections
from bookie_server.process import _tune_process
_tune_process()
print("numpy.ma" in sys.modules)
print(open("/proc/self/status").read().split("FDSize:")[1].split()[0])
print(sum(share_connections()))
"""


def test_the_event_loop_need_not_import_nor_wait_for_a_longer_table_of_open_files() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    is_imported, entries, connections = ran.stdout.split()
    assert is_imported == "True"
    assert int(entries) >= int(connections)
