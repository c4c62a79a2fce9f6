"""Headless Chromium for tests, over the pipe of its DevTools protocol. No port, and a profile of its own."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.support.machine import cannot_run

_NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
#: A bound for "never".
_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.05
_FLAGS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    # Containers have no user namespaces, and a small /dev/shm.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--window-size=1400,1000",
)
_KEYS: Final = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Space": ("Space", 32, " ")}


def find_browser() -> str:
    """Return Chromium's path. Without one the test cannot run."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        cannot_run("no Chromium: scripts/ensure_test_programs.sh installs it, or says how")
    return path


class Browser:
    """One page. A context manager. ``directory`` gets the profile."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        #: What the page complained about: errors of scripts, violations of the policy, dialogs.
        self.complaints: list[str] = []

    def __enter__(self) -> Browser:
        binary = find_browser()
        # Chromium reads its third file, and writes its fourth.
        (commands, self._write), (self._read, answers) = os.pipe(), os.pipe()
        arguments = [binary, *_FLAGS, f"--user-data-dir={self._directory}", "about:blank"]
        script = f'exec "$@" 3<&{commands} 4>&{answers} {commands}<&- {answers}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *arguments],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(self._directory)},
        )
        os.close(commands)
        os.close(answers)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Its processes end with it.
        os.close(self._write)
        try:
            self._process.wait(_PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command, and return its result."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until ``expression`` is true in the page."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"{expression}\n{self.evaluate('document.body.innerText')}"
            time.sleep(_POLL_S)
        return value

    def press(self, key: str) -> None:
        code, number, text = _KEYS[key]
        press = {"key": text if key == "Space" else key, "code": code, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **press)
        self.call("Input.dispatchKeyEvent", type="keyUp", **press)

    def screenshot(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, f"Chromium has ended with status {self._process.wait()}"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown" | "Page.javascriptDialogOpening":
                self.complaints.append(str(event["params"]))
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                self.complaints.append(str(event["params"]["entry"]))
