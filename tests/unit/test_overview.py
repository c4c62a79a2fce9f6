"""The overview of the cluster: one collection for many callers, and bounds on what is asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.formats.progress import LogProgress, Progress, decode_progress, encode_progress
from bk_spark.overview.bookies import _samples
from bk_spark.overview.http_call import NoAnswerError, caller, token_in
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError, MetadataUnavailableError
from bookie_server.admin import cluster_page
from bookie_server.admin.cluster_page import ClusterPage
from bookie_server.admin.routes import HttpError, Request, Response
from tests.support.bookie_settings import bookie_config

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
        try:
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
        finally:
            page.close()

    asyncio.run(check())


def test_a_failed_collection_is_told_and_tried_again() -> None:
    async def check() -> None:
        page = Page()
        page.go_on.set()
        page.fails = True
        try:
            with pytest.raises(HttpError, match="no ZooKeeper") as caught:
                await ask(page)
            assert caught.value.status == 503
            page.fails = False
            assert (await ask(page)).content == b"2"
        finally:
            page.close()

    asyncio.run(check())


def test_the_files_allow_no_foreign_script() -> None:
    async def check() -> None:
        page = Page()
        try:
            kinds = {}
            for path in ("/", "/cluster.css", "/cluster.js"):
                answer = await ask(page, path)
                kinds[path] = answer.content_type
                assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
                assert "unsafe" not in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                text = answer.content.decode()
                assert not any(word in text for word in ("http://", "https://", "innerHTML", "onclick", "<style"))
            assert [kind.partition(";")[0] for kind in kinds.values()] == ["text/html", "text/css", "text/javascript"]
        finally:
            page.close()

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


def drip(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    ended = threading.Event()
    while not ended.wait(0.02):
        connection.sendall(b"x")


def flood(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (drip, "no answer in time"),
        (flood, "too long|no answer in time"),
        (lambda connection: connection.sendall(b"nonsense\r\n\r\n"), "does not answer"),
        (lambda connection: None, "does not answer"),
        (lambda connection: connection.sendall(b"HTTP/1.1 401 Unauthorized\r\n\r\n"), "status 401"),
    ],
)
def test_an_answer_that_cannot_be_used(answer: Callable[[socket.socket], None], says: str) -> None:
    with answering(answer) as port, pytest.raises(NoAnswerError, match=says):
        replace(caller(), timeout_s=0.3 if answer in (drip, flood) else 30.0).get("http", "127.0.0.1", port, "/x")


def test_https_without_an_authority_is_not_asked() -> None:
    with pytest.raises(NoAnswerError, match="no authority is trusted"):
        caller().get("https", "127.0.0.1", 1, "/x")


def test_samples_of_either_bookie() -> None:
    text = '# HELP x\nx 1\ny_count{success="true", a="b"} 2.5\nz{q="0.5"} NaN\nbad line here\nw +Inf\n'
    assert _samples(text) == {("x", ""): 1.0, ("y_count", 'success="true",a="b"'): 2.5}


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
