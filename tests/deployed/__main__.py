"""``python -m tests.deployed [PART ...]``: run the files of ``deploy/`` for real."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from bookie_server.local.zookeeper import zookeeper_jars
from tests.deployed.compose import build_image, run_compose
from tests.deployed.engine import REPOSITORY, Engine
from tests.deployed.kubernetes import run_kubernetes
from tests.deployed.spark import run_spark
from tests.deployed.unit import run_unit

PARTS = ("compose", "spark", "kubernetes", "systemd")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deployed", description="Run the files of deploy/ for real.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parts = parser.parse_args().parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        parser.error("this needs root: chroot, mounts and namespaces")
    # A run that is ended stops what it started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    directory = REPOSITORY / "build" / "deployed"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            parser.error(f"another run uses {directory}")
        run(parts, directory)
    return 0


def run(parts: Collection[str], directory: Path) -> None:
    make_roots(directory)
    if {"compose", "spark", "kubernetes"} & set(parts):
        with Engine(directory) as engine:
            if "compose" in parts:
                run_compose(engine)
            if "spark" in parts:
                run_spark(engine)
            if "kubernetes" in parts:
                build_image(engine)
                run_kubernetes(engine)
    if "systemd" in parts:
        run_unit(directory)


def make_roots(directory: Path) -> None:
    """Make the trees that are not there yet."""
    jars = directory / "jars"
    jars.mkdir(parents=True, exist_ok=True)
    found = zookeeper_jars()
    for jar in found:
        shutil.copy(jar, jars)
    script = Path(__file__).parent / "make_roots.sh"
    subprocess.run(
        ["bash", str(script), str(directory), str(jars), str(found[0].parents[1])], check=True, timeout=1_200
    )


if __name__ == "__main__":
    sys.exit(main())
