"""The overview of the cluster: one collection for many callers, and bounds on what is asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.formats.progress import LogProgress, Progress, decode_progress, encode_progress
from bk_spark.overview import bookies as bookies_module
from bk_spark.overview.bookies import _said_by, _shown
from bk_spark.overview.http_call import HttpCaller, NoAnswerError, caller, token_in
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError, MetadataUnavailableError
from bk_spark.protocol.metadata.registration import Endpoint
from bookie_server.admin import cluster_page
from bookie_server.admin.cluster_page import ClusterPage
from bookie_server.admin.routes import HttpError, Request, Response
from tests.support.bookie_settings import bookie_config
from tests.support.environments import REPOSITORY

ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


class Page(ClusterPage):
    """A page whose collections the test makes."""

    def __init__(self) -> None:
        super().__init__(bookie_config(), cast(ZooKeeper, None))
        self.collections = 0
        self.go_on = threading.Event()
        self.fails = False

    def _collect(self) -> bytes:
        self.collections += 1
        assert self.go_on.wait(60)
        if self.fails:
            raise MetadataUnavailableError("no ZooKeeper")
        return json.dumps(self.collections).encode()


async def ask(page: Page, path: str = cluster_page.OVERVIEW_PATH) -> Response:
    return await page.routes()[path]["GET"](Request("GET", path, {}, b""))


def test_ten_open_pages_cost_one_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        page = Page()
        asked = [asyncio.ensure_future(ask(page)) for _ in range(10)]
        asked[0].cancel()  # who leaves takes nothing from the others
        await asyncio.sleep(0)
        page.go_on.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asked[0]
        assert {(await one).content for one in asked[1:]} == {b"1"}
        assert (await ask(page)).content == b"1"
        monkeypatch.setattr(cluster_page, "_SERVED_S", 0.0)
        assert (await ask(page)).content == b"2"

    asyncio.run(check())


def test_a_failed_collection_is_told_and_tried_again() -> None:
    async def check() -> None:
        page = Page()
        page.go_on.set()
        page.fails = True
        with pytest.raises(HttpError, match="no ZooKeeper") as caught:
            await ask(page)
        assert caught.value.status == 503
        page.fails = False
        assert (await ask(page)).content == b"2"

    asyncio.run(check())


def test_a_process_ends_while_names_of_bookies_are_looked_up() -> None:
    """A resolver that does not answer has no time limit: neither the page nor the process waits for it."""
    script = """
import asyncio, json, socket, threading, time
from bk_spark.overview import bookies
from bk_spark.overview.http_call import HttpCaller
from bk_spark.protocol.metadata.registration import Endpoint
from bookie_server.admin.cluster_page import ClusterPage
from tests.support.bookie_settings import bookie_config
from tests.support.environments import REPOSITORY

looked_up = threading.Semaphore(0)

def stalls(*_, **__):
    looked_up.release()
    threading.Event().wait()

socket.getaddrinfo = stalls
bookies._ASK_ALL_S = 0.2
seen = bookies.Bookies(None, "/ledgers", lambda _: None, HttpCaller)
endpoints = {f"bookie-{n}": Endpoint("httpserver", "bookie.example", 8080, "http") for n in range(20)}
for threads in (16, 0):
    assert set(seen._ask(endpoints).values()) == {"no answer in time"}
    assert sum(looked_up.acquire(timeout=0) for _ in range(20)) == threads

class Page(ClusterPage):
    def _collect(self):
        stalls()

async def look():
    page = Page(bookie_config(), None)
    try:
        await asyncio.wait_for(page.overview(), 0.2)
    except TimeoutError:
        print("ends")

asyncio.run(look())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


def test_the_files_allow_no_foreign_script() -> None:
    async def check() -> None:
        page = Page()
        kinds = {}
        for path in ("/", "/cluster.css", "/cluster.js"):
            answer = await ask(page, path)
            kinds[path] = answer.content_type
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            text = answer.content.decode()
            assert not any(word in text for word in ("http://", "https://", "innerHTML", "onclick", "<style"))
        assert [kind.partition(";")[0] for kind in kinds.values()] == ["text/html", "text/css", "text/javascript"]

    asyncio.run(check())


# --- bookies over HTTP ---


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None], seen: list[bytes] | None = None) -> Iterator[int]:
    """A server whose one connection gets what ``answer`` sends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                (seen if seen is not None else []).append(connection.recv(65536))
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_an_answer_and_the_token() -> None:
    seen: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"hello")

    with answering(answer, seen) as port:
        asking = caller(token="a secret token")
        assert asking.get("http", "127.0.0.1", port, "/x") == "hello"
    assert b"Authorization: Bearer a secret token\r\n" in seen[0]
    assert "a secret" not in repr(asking)


def test_a_token_is_one_word(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b" a-token\n\n")
    assert token_in(path, "--token-file") == "a-token"
    for wrong in (b"", b"\n", b"two words", b"two\r\nlines", "t\u00f6ken".encode()):
        path.write_bytes(wrong)
        with pytest.raises(InvalidArgumentError, match="--token-file: .*one token") as caught:
            token_in(path, "--token-file")
        assert not wrong.strip() or wrong.decode() not in str(caught.value)


def drip(connection: socket.socket, head: bytes = HEAD) -> None:
    connection.sendall(head)
    ended = threading.Event()
    while not ended.wait(0.02):
        connection.sendall(b"x")


def drip_headers(connection: socket.socket) -> None:
    drip(connection, b"HTTP/1.1 200 OK\r\nX-Long: ")


def flood(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (drip, "no answer in time"),
        (drip_headers, "no answer in time"),
        (flood, "too long|no answer in time"),
        (lambda connection: connection.sendall(b"nonsense\r\n\r\n"), "does not answer"),
        (lambda connection: None, "does not answer"),
        (lambda connection: connection.sendall(b"HTTP/1.1 401 Unauthorized\r\n\r\n"), "status 401"),
    ],
)
def test_an_answer_that_cannot_be_used(answer: Callable[[socket.socket], None], says: str) -> None:
    asking = replace(caller(), timeout_s=0.3 if answer in (drip, drip_headers, flood) else 30.0)
    with answering(answer) as port, pytest.raises(NoAnswerError, match=says):
        asking.get("http", "127.0.0.1", port, "/x")


def test_https_without_an_authority_is_not_asked() -> None:
    with pytest.raises(NoAnswerError, match="no authority is trusted"):
        caller().get("https", "127.0.0.1", 1, "/x")


@pytest.mark.parametrize("host", ["a b", "a\r\nX: y", "a\0b", "\u00e4" * 70, "", "." * 300])
def test_a_host_that_is_no_name(host: str) -> None:
    with pytest.raises(NoAnswerError, match="does not answer"):
        caller().get("http", host, 1, "/x")


def said_by(metrics: str, space: str) -> Any:
    answers = {"/metrics": metrics, "/api/v1/bookie/info": space}
    asking = SimpleNamespace(get=lambda scheme, host, port, path: answers[path])
    return _said_by(cast(HttpCaller, asking), Endpoint("httpserver", "h", 1, "http"))


SPACE = '{"freeSpace": 5, "totalSpace": 7}'


def test_samples_of_either_bookie() -> None:
    text = (
        "# HELP x\nbookie_WRITE_BYTES 1\nbookkeeper_server_connections 1e999\nbookie_READ_BYTES NaN\nbad line here\n"
        'bookkeeper_server_ADD_ENTRY_REQUEST{success="true", quantile="0.99"} 2.5\nother 7\n'
        'bookie_ledger_dir_x_usage{a="\n"} 3\n'
    )
    said = said_by(text, SPACE)
    assert said.counts == {"written_bytes_per_s": 1.0}
    assert said.facts == {
        "disks": [], "free_bytes": 5, "total_bytes": 7, "add_p99_ms": 2.5, "connections": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "space",
    [
        "", "[]", "{}", '{"freeSpace": Infinity, "totalSpace": 7}', '{"freeSpace": 5, "totalSpace": 1e999}',
        '{"freeSpace": NaN, "totalSpace": 7}', '{"freeSpace": -1, "totalSpace": 7}', "[" * 100_000,
        '{"freeSpace": 1' + "0" * 400 + ', "totalSpace": 7}', '{"freeSpace": 1' + "0" * 5000 + ', "totalSpace": 7}',
    ],
)  # fmt: skip
def test_sizes_that_no_disk_has(space: str) -> None:
    assert said_by("", space) == "its answer cannot be read"


def test_the_fullest_disks_are_shown() -> None:
    text = "".join(f"bookie_ledger_dir_d{each:04}_usage {each % 500}\n" for each in range(1000))
    disks = said_by(text, SPACE).facts["disks"]
    assert len(disks) == 100
    assert min(disk["used_percent"] for disk in disks) == 450
    assert [disk["directory"] for disk in disks] == sorted(disk["directory"] for disk in disks)


def test_which_of_many_bookies_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookies_module, "MAX_SHOWN", 4)
    assert _shown({"b": "writable", "a": "not registered"}) == ["a", "b"]
    writable = {f"w{each}": "writable" for each in range(5)}
    gone = {f"a{each}": "not registered" for each in range(5)}
    assert _shown(writable) == ["w0", "w1", "w2", "w3"]
    assert _shown(writable | gone | {"z": "read-only"}) == ["a0", "a1", "w0", "w1"]
    assert _shown({"w": "writable"} | gone) == ["a0", "a1", "a2", "w"]
    assert _shown(gone) == ["a0", "a1", "a2", "a3"]


# --- how far queries have read ---


def test_progress_is_what_was_written() -> None:
    progress = Progress("host", 7, 1000, (LogProgress("clicks", ID, 20, 30),), 2)
    assert decode_progress(encode_progress(progress), "/x") == progress


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x02", b"\xff", encode_progress(Progress("h", 1, 1, (LogProgress("a", ID, (1 << 64) - 1, 1),)))]
)
def test_damaged_progress(data: Any) -> None:
    with pytest.raises(MetadataFormatError, match="/x"):
        decode_progress(data, "/x")
