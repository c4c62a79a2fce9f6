"""The token of the admin API in tests, and requests that show it."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Final

TOKEN: Final = "the-token-of-the-tests"
BEARER: Final = {"Authorization": f"Bearer {TOKEN}"}


def token_file(directory: Path, token: str = TOKEN) -> str:
    """Write the token into ``directory``, and return the file's path, the value of ``httpServerTokenFile``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "admin-token"
    path.write_text(f"{token}\n")
    return str(path)


def put(url: str, body: bytes | None = None, token: str = TOKEN) -> str:
    """Change something, and return the answer. Raises HTTPError if it is refused."""
    request = urllib.request.Request(url, body, headers={"Authorization": f"Bearer {token}"}, method="PUT")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())
