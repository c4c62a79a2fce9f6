"""The thread that checks a log writer's hold on the tail whenever the owner's znode, or the ledger's writer, may have
changed."""

from __future__ import annotations

import threading
from collections.abc import Callable


class TailKeeper:
    """Calls ``keep`` in a thread of its own: at the start, whenever ``changed`` is set, and after as many milliseconds
    as ``keep`` returned. If it returned None, only ``changed`` matters.

    ``keep`` may send requests to ZooKeeper, for a few seconds in total.
    """

    def __init__(self, name: str, changed: threading.Event, keep: Callable[[], float | None]) -> None:
        self._changed = changed
        self._keep = keep
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log-tail-keeper {name}", daemon=True)

    def start(self) -> None:
        """Start the thread, which calls ``keep`` at once."""
        self._changed.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop. ``keep`` is not called after this returns. Safe to repeat, and to call from any other thread."""
        self._stopped.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            if self._stopped.is_set():
                return
            self._changed.clear()
            again_ms = self._keep()
            if again_ms is not None:
                self._stopped.wait(again_ms / 1000)
                self._changed.set()
