"""A client in JavaScript, with packages of npm. Node.js comes with the test requirements."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.machine import cannot_run

_SOURCE = Path(__file__).with_name("node")
_TIMEOUT_S = 240
#: npm's codes for a registry that it cannot reach, or that does not have a package.
_NO_PACKAGES = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "ETIMEDOUT", "E403", "E404")


def program(name: str) -> str:
    """Return the path of ``node`` or ``npm`` of this environment."""
    found = shutil.which(name, path=os.path.dirname(sys.executable))
    assert found is not None, f"{name} is not beside {sys.executable}: pip install 'bk-spark[test]'"
    return found


def node_client(directory: Path) -> Path:
    """Install the client and its packages in ``directory``. Where npm cannot get them, the test cannot run."""
    for file in ("package.json", "logs.js"):
        shutil.copy(_SOURCE / file, directory)
    environment = os.environ | {"npm_config_cache": str(directory / "cache"), "npm_config_update_notifier": "false"}
    done = subprocess.run(
        [program("npm"), "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode and any(f"code {code}" in done.stderr for code in _NO_PACKAGES):
        cannot_run(f"npm cannot get the client's packages: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return directory
