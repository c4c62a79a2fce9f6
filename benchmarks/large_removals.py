"""Measures how long syncs wait beside the removal of a large file.

The file is removed in steps, as the bookie removes its journals and entry logs. A writer overwrites 4 KiB and syncs
them, over and over. Peer: a plain ``unlink`` of such a file, in the same run, in turn.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks.report import figure
from bookie_server.storage.disk.removal import Removal

NAME = "large_removals"
_MIB: Final = 1 << 20
_WRITTEN_BYTES: Final = 4096
_ROOM_BYTES: Final = 16 * _MIB
_PAUSE_S: Final = 0.001
#: Before and after a removal.
_AROUND_S: Final = 0.5


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-", dir=options.directory) as temporary,
        closing(Removal()) as removal,
    ):
        directory = Path(temporary)

        def in_steps(path: str) -> None:
            freed = removal.free(removal.unlink(path))
            assert freed is not None
            freed.result()

        ways: dict[str, Callable[[str], None]] = {"steps": in_steps, "unlink": os.unlink}
        for megabytes in options.megabytes:
            waits_ms: dict[str, list[float]] = {way: [] for way in ways}
            lasts_ms: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(options.rounds):
                for way, remove in ways.items():
                    path = _write(directory / "large", megabytes)
                    longest_s, lasted_s = _beside(directory / "synced", functools.partial(remove, path))
                    waits_ms[way].append(1000 * longest_s)
                    lasts_ms[way].append(1000 * lasted_s)
            medians = {way: statistics.median(found) for way, found in waits_ms.items()}
            figure(
                NAME,
                "longest_sync",
                medians["steps"] / medians["unlink"],
                "ratio",
                megabytes=megabytes,
                steps_ms=round(medians["steps"], 1),
                unlink_ms=round(medians["unlink"], 1),
                rounds_steps_ms=[round(each, 1) for each in waits_ms["steps"]],
                rounds_unlink_ms=[round(each, 1) for each in waits_ms["unlink"]],
                removal_steps_ms=round(statistics.median(lasts_ms["steps"])),
                removal_unlink_ms=round(statistics.median(lasts_ms["unlink"])),
            )


def _write(path: Path, megabytes: int) -> str:
    content = os.urandom(_MIB)
    with path.open("wb", buffering=0) as file:
        for number in range(megabytes):
            file.write(content)
            if number % 8 == 0:
                os.fdatasync(file)
        os.fsync(file)
    return str(path)


def _beside(path: Path, remove: Callable[[], None]) -> tuple[float, float]:
    """Return the longest sync beside ``remove``, and how long that took, in seconds."""
    syncs: list[tuple[float, float]] = []
    stopped = threading.Event()

    def sync() -> None:
        with path.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
            os.fsync(file)
            content, offset = os.urandom(_WRITTEN_BYTES), 0
            while not stopped.is_set():
                began_s = time.monotonic()
                os.pwrite(file.fileno(), content, offset)
                os.fdatasync(file)
                syncs.append((began_s, time.monotonic()))
                offset = (offset + _WRITTEN_BYTES) % _ROOM_BYTES
                time.sleep(_PAUSE_S)

    writer = threading.Thread(target=sync)
    writer.start()
    time.sleep(_AROUND_S)
    began_s = time.monotonic()
    remove()
    ended_s = time.monotonic()
    time.sleep(_AROUND_S)
    stopped.set()
    writer.join()
    return max(end - begin for begin, end in syncs if end >= began_s), ended_s - began_s
