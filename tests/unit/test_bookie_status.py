"""``BOOKIE_STATUS``: written by whoever has a new mode."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from bookie_server.bookie_status import read_status, write_status
from bookie_server.identity.registration import BookieMode


def test_writers_in_several_threads_do_not_meet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An operator's request and the registration both write it, and neither may fail because of the other."""
    modes = [BookieMode(), BookieMode(read_only=True), BookieMode(read_only=True, manual=True)]
    begin = threading.Barrier(len(modes))
    failures: list[Exception] = []

    def write(mode: BookieMode) -> None:
        begin.wait()
        try:
            for _ in range(50):
                write_status([str(tmp_path)], mode)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(mode,)) for mode in modes]
    with caplog.at_level(logging.WARNING):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert caplog.records == []
    assert read_status([str(tmp_path)]) in modes
