"""Traces a bookie that is started with this folder in PYTHONPATH (tests/integration/test_docs_walk.py).

SIGUSR1 begins the record, or ends it and writes it to the file ``WALK_RECORD``.
"""

import os
import signal
import sys
import threading
from pathlib import Path

if "WALK_RECORD" in os.environ and "bookie_server" in sys.orig_argv:
    from tests.support.row_tracer import RowTracer

    tracer = RowTracer()

    def switch(number: object, frame: object) -> None:
        if tracer.records:
            record = Path(os.environ["WALK_RECORD"])
            record.with_suffix(".new").write_text("\n".join(sorted(tracer.modules)), "utf-8")
            record.with_suffix(".new").rename(record)
        tracer.records = not tracer.records

    signal.signal(signal.SIGUSR1, switch)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
