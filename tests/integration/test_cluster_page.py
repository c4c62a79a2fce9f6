"""The page of the cluster: its JSON from a real cluster, and what headless Chromium shows of it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from bk_spark import BlockingClient, ClientConfig, Quorum
from bk_spark.bkctl import main
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.log.formats.names import readers_path
from bk_spark.log.formats.progress import LogProgress, Progress, encode_progress
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.store import LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.proto.admin_pb2 import Cluster
from bookie_server.admin.cluster_page import OVERVIEW_PATH
from bookie_server.local import LocalCluster
from tests.support.admin import token_file
from tests.support.bookie import BookieProcess, free_port
from tests.support.browser import Browser

ONE = Quorum(1, 1, 1)
#: What somebody might put into a znode.
HOSTILE = "<img src=x onerror=alert(1)><b>bold"


class Served:
    """A bookie with its page, and a client of the same cluster."""

    def __init__(self, bookie: BookieProcess, client: BlockingClient, uri: str, log_root: str) -> None:
        self.bookie, self.client, self.log_root = bookie, client, log_root
        self.uri = uri
        self.url = f"http://127.0.0.1:{bookie.settings['httpServerPort']}/"
        self.logs = LogStore.of(client, log_root)

    def overview(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url.rstrip("/") + OVERVIEW_PATH, timeout=60) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            found: dict[str, Any] = json.load(answer)
        # The answer of gRPC has all fields, too.
        json_format.ParseDict(found, Cluster())
        return found

    def create_log(self, name: str) -> Any:
        return self.logs.create_log(name, LogSettings.create(ONE, DigestType.CRC32C, EntryFormat.RAW, b""), b"")


@pytest.fixture
def served(tmp_path: Path, zk_only: LocalCluster, ledgers_root: str, fresh_root: str) -> Iterator[Served]:
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"
    port = str(free_port())
    log_root = f"{fresh_root}-logs"
    settings = {"httpServerEnabled": "true", "httpServerPort": port, "httpServerLogRoot": log_root}
    bookie = BookieProcess(tmp_path / "bookie", uri, bookieRacks="127.0.0.1=/zone-a", **settings)
    bookie.start()
    try:
        with BlockingClient(uri, ClientConfig(explicit_lac_interval_ms=1000)) as client:
            yield Served(bookie, client, uri, log_root)
    finally:
        bookie.end()


def test_the_page_in_a_browser(
    served: Served, zookeeper: ZooKeeper, ledgers_root: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All of it in one test, because the browser starts once. A terminal shows the same."""
    log = served.create_log("clicks")
    with closing(log.open_writer()) as writer:
        writer.append_many([b"x" * 100] * 50)
        writer.flush()
        zookeeper.ensure_path(f"{ledgers_root}/cookies")
        zookeeper.create(f"{ledgers_root}/cookies/{HOSTILE}", b"")
        with closing(served.client.create(quorum=ONE)) as ledger:
            ledger.append(b"entry")
        marks = UnderReplicationStore(zookeeper, ledgers_root)
        marks.prepare()
        marks.mark(ledger.ledger_id, [served.bookie.id, HOSTILE])
        reading = Progress(f"{HOSTILE}\x1b[2J", 7, 1, (LogProgress("clicks", log.log_id, 20, 30),))
        zookeeper.ensure_path(readers_path(served.log_root))
        zookeeper.create(f"{readers_path(served.log_root)}/one", encode_progress(reading))

        seen = served.overview()
        assert seen["problems"] == []
        hostile, bookie = sorted(seen["bookies"], key=lambda one: one["bookie"] == served.bookie.id)
        assert (hostile["bookie"], hostile["state"], hostile["http"]) == (HOSTILE, "not registered", None)
        assert (bookie["state"], bookie["http"], bookie["problem"]) == ("writable", served.url, None)
        assert (bookie["rack"], len(bookie["disks"])) == ("/zone-a", 1)
        assert 0 < bookie["free_bytes"] < bookie["total_bytes"]
        assert (seen["ledgers"]["total"], seen["ledgers"]["states"]["open"]) == (2, 1)
        (repaired,) = seen["repair"]["ledgers"]
        assert (repaired["ledger"], repaired["fragments"], repaired["all_fragments"]) == (ledger.ledger_id, 1, 1)
        (shown,) = seen["logs"]
        assert (shown["log"], shown["segments"], shown["open_tail"], shown["complete"]) == ("clicks", 1, True, True)
        (reader,) = seen["readers"]
        assert (reader["reader"], reader["lag_entries"]) == (f"{HOSTILE}\x1b[2J, process 7", 10)

        check_terminal(served, capsys, monkeypatch, tmp_path)
        with Browser(tmp_path / "profile") as browser:
            browser.open(served.url)
            browser.until("document.body?.dataset.shown")
            text = browser.evaluate("document.body.innerText")
            for expected in (served.bookie.id, "clicks", "writable", "not registered", "10 entries", "1 of 1"):
                assert expected in text, text
            check_foreign_text(browser, text)
            check_structure(browser)
            check_keyboard(browser)
            check_colours(browser)
            # The log grows, and the page shows it without being loaded again.
            browser.evaluate("window.loadedOnce = true")
            writer.close()
            browser.until("document.querySelector('#logs tbody td').textContent === '50' && window.loadedOnce")
            assert served.bookie.stop() == 0
            browser.until("document.getElementById('status').textContent.startsWith('No answer')")
            assert "clicks" in browser.evaluate("document.body.innerText")


def check_terminal(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    top = ["--metadata-service-uri", served.uri, "--log-root", served.log_root, "top"]
    assert main([*top, "--once"]) == 0
    printed, error = capsys.readouterr()
    assert error == ""
    reader = "clicks   10       20   30"
    for expected in (f"{served.bookie.id} ", "not registered", HOSTILE, "1 under-replicated", reader):
        assert expected in printed, printed
    # A terminal obeys nothing that stands in a name.
    assert f"{HOSTILE}\\u001b[2J, process 7" in printed
    assert all(line.isprintable() for line in printed.splitlines())
    monkeypatch.setenv("BK_ADMIN_TOKEN_FILE", str(tmp_path / "none"))
    assert main([*top, "--json"]) == 1
    assert "--token-file" in capsys.readouterr().err
    assert main([*top, "--json", "--token-file", token_file(tmp_path)]) == 0
    seen = json.loads(capsys.readouterr().out)
    (bookie,) = (one for one in seen["bookies"] if one["bookie"] == served.bookie.id)
    assert (bookie["adds_per_s"], bookie["total_bytes"] > 0) == (0, True)


def check_foreign_text(browser: Browser, text: str) -> None:
    """Names that look like HTML are text, wherever they come from, and nothing in them runs."""
    assert text.count(HOSTILE) >= 3, text
    assert browser.evaluate("document.querySelectorAll('main img, main b, main script').length") == 0
    assert browser.complaints == []
    # Even if one of them became an element, nothing in it would run.
    browser.evaluate("void (document.getElementById('where').innerHTML = '<img src=x onerror=\"window.ran = 1\">')")
    browser.until("document.querySelector('#where img').complete")
    assert browser.evaluate("window.ran") is None
    browser.evaluate("void document.querySelector('#where img').remove()")


def check_structure(browser: Browser) -> None:
    """What those need who hear the page."""
    assert browser.evaluate("document.documentElement.lang") == "en"
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1
    assert browser.evaluate("document.querySelectorAll('th:not([scope])').length") == 0
    assert browser.evaluate(
        "[...document.querySelectorAll('tbody tr')].every((row) => row.cells[0].scope || row.cells[0].colSpan > 1)"
    )
    assert browser.evaluate("document.getElementById('status').getAttribute('aria-live')") == "polite"
    labels = "[...document.querySelectorAll('[aria-labelledby]')].map((one) => one.getAttribute('aria-labelledby'))"
    assert browser.evaluate(f"{labels}.every((label) => document.getElementById(label))")


def check_keyboard(browser: Browser) -> None:
    focused = "(document.activeElement.id || document.activeElement.textContent)"
    visited = []
    for _ in range(8):
        browser.press("Tab")
        visited.append(browser.evaluate(focused))
    assert visited[:2] == ["Skip to the tables", "pause"]
    assert {"Bookies", "Ledgers", "Repair", "Logs", "Readers"} <= set(visited)
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.evaluate("document.getElementById('pause').focus()")
    for expected in ("true", "false"):
        browser.press("Enter")
        assert browser.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == expected
    # A table that is wider than the window is reached, and then moved by the arrows.
    assert browser.evaluate("[...document.querySelectorAll('.wide')].every((one) => one.tabIndex === 0)")


def check_colours(browser: Browser) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        names = ["ground", "text", "faint", "link", "good", "warn", "bad"]
        value = "getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
        style = dict(zip(names, browser.evaluate(f"{names}.map((name) => {value})"), strict=True))
        ground = style.pop("ground")
        grounds.add(ground)
        for name, colour in style.items():
            assert contrast(colour, ground) >= 4.5, (scheme, name)
    assert len(grounds) == 2


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG 2 defines it."""
    brighter, darker = sorted((brightness(one), brightness(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def brightness(colour: str) -> float:
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
