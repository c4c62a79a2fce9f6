"""The leak check of these tests finds what it is there to find, and nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from tests.support.leaks import LeakWatch

_REPOSITORY = Path(__file__).resolve().parents[2]

_LEAKING = """
import asyncio, gc, socket, threading

def test_leaves_a_thread_and_a_socket():
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()
    kept.append(socket.socket())

def test_leaves_nothing():
    with socket.socket():
        threading.Thread(target=int).start()

def test_forgets_a_task():
    async def wait():
        # Held by nothing but the task itself, and nothing but it holds the task.
        await asyncio.get_running_loop().create_future()

    async def forget():
        asyncio.get_running_loop().create_task(wait(), name="forgotten task")
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(forget())

def test_forgets_an_error():
    async def fail():
        raise ValueError("lost")

    async def forget():
        await asyncio.wait([asyncio.get_running_loop().create_task(fail())])

    asyncio.run(forget())

kept = []
"""
#: What leaks stays for ever: nobody need wait half a minute for its end.
_IMPATIENT = """
from tests.support import leaks

leaks.PATIENCE_S = 5.0
"""


@pytest.fixture
def watch() -> Iterator[LeakWatch]:
    watch = LeakWatch()
    yield watch
    watch.end()


def test_a_thread(watch: LeakWatch) -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="forgotten", daemon=True)
    thread.start()
    assert watch.leaked(0.1) == ["thread forgotten (daemon)"]
    go_on.set()
    assert watch.leaked() == []


def test_sockets(watch: LeakWatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        at = f"{address[0]}:{address[1]}"
        with socket.create_connection(address), socket.create_connection(address), socket.socket():
            assert watch.leaked(0.1) == [
                f"2 sockets: connected to {at}",
                f"1 socket: listening at {at}",
                "1 socket: not connected",
            ]
    assert watch.leaked() == []


def test_a_socket_that_was_replaced_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        watch = LeakWatch()
        with socket.create_connection(listener.getsockname()):
            first.close()
            assert watch.leaked() == []
        watch.end()


def test_a_client_that_is_not_closed(watch: LeakWatch, metadata_service_uri: str) -> None:
    client = BlockingClient(metadata_service_uri)
    client.create().append(b"one")
    leaked = "\n".join(watch.leaked(0.1))
    assert "thread bk-client" in leaked
    assert "thread bk-metadata" in leaked
    assert leaked.count("connected to 127.0.0.1") == 4  # ZooKeeper, three bookies
    client.close()
    assert watch.leaked() == []


def test_tests_that_leak_fail(tmp_path: Path) -> None:
    """As pytest sees it: the fixture of tests/conftest.py, and a test file that leaks on purpose."""
    (tmp_path / "integration").mkdir()
    (tmp_path / "integration" / "test_leaking.py").write_text(_LEAKING, "utf-8")
    (tmp_path / "integration" / "conftest.py").write_text(_IMPATIENT, "utf-8")
    for source in (_REPOSITORY / "tests" / "conftest.py", _REPOSITORY / "pyproject.toml"):
        (tmp_path / source.name).write_text(source.read_text("utf-8"), "utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", f"pythonpath={_REPOSITORY}", "integration"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "4 passed, 3 errors" in run.stdout
    for leak in (
        "thread forgotten (daemon)",
        "1 socket: not connected",
        "Task was destroyed but it is pending",
        "ValueError('lost')",
    ):
        assert leak in run.stdout
