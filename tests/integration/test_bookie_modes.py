"""Read-only mode that is no disk's doing, how it is kept over restarts, and stops before the bookie serves."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import Code
from bookie_server.bookie_status import read_status, write_status
from bookie_server.identity.registration import BookieMode
from bookie_server.local import LocalCluster
from tests.support.admin import put, token_file
from tests.support.bookie import BookieProcess, free_port, stored
from tests.support.tcp_proxy import Connects, TcpProxy


@pytest.fixture
def bookie(tmp_path: Path, zk_only: LocalCluster, ledgers_root: str) -> Iterator[BookieProcess]:
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"
    process = BookieProcess(tmp_path / "bookie", uri, httpServerEnabled="true", httpServerHost="127.0.0.1")
    process.settings |= {"httpServerPort": str(free_port()), "httpServerTokenFile": token_file(tmp_path)}
    process.settings["ledgerDirectories"] = f"{tmp_path / 'l0'},{tmp_path / 'l1'}"
    yield process
    process.end()


def status_files(bookie: BookieProcess) -> list[Path]:
    return [Path(path) / "current" / "BOOKIE_STATUS" for path in bookie.settings["ledgerDirectories"].split(",")]


def put_read_only(bookie: BookieProcess, value: bool) -> Any:
    url = f"http://127.0.0.1:{bookie.settings['httpServerPort']}/api/v1/bookie/state/readonly"
    return json.loads(put(url, json.dumps({"readOnly": value}).encode()))


def registered(zookeeper: ZooKeeper, root: str, bookie: BookieProcess) -> tuple[bool, bool]:
    """Whether the bookie is there as writable, as read-only."""
    paths = (f"{root}/available/{bookie.id}", f"{root}/available/readonly/{bookie.id}")
    return (zookeeper.exists(paths[0]) is not None, zookeeper.exists(paths[1]) is not None)


def wait_registered(zookeeper: ZooKeeper, root: str, bookie: BookieProcess, wanted: tuple[bool, bool]) -> None:
    deadline = time.monotonic() + 60
    while registered(zookeeper, root, bookie) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_forced_read_only(bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str) -> None:
    bookie.start()
    with bookie.connect() as connection:
        assert connection.add(1, range(5)) == [Code.OK] * 5
    assert bookie.stop() == 0
    bookie.settings["forceReadOnlyBookie"] = "true"
    bookie.start()
    assert registered(zookeeper, ledgers_root, bookie) == (False, True)
    with bookie.connect() as connection:
        assert connection.add(1, [5]) == [Code.READ_ONLY]
        assert connection.read(1, 4) == stored(1, 4)
        assert connection.fence(1) == stored(1, 4)
    assert bookie.stop() == 0
    assert registered(zookeeper, ledgers_root, bookie) == (False, False)


def test_an_operators_read_only_mode_outlives_restarts(
    bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    bookie.settings["persistBookieStatusEnabled"] = "true"
    bookie.start()
    assert put_read_only(bookie, True) == {"readOnly": True}
    for path in status_files(bookie):
        version, mode, at_ms, manual = path.read_text().split(",")
        assert (version, mode, manual) == ("1", "READ_ONLY", "true\n")
        assert abs(int(at_ms) / 1000 - time.time()) < 300
    wait_registered(zookeeper, ledgers_root, bookie, (False, True))
    bookie.crash()
    bookie.start()
    assert registered(zookeeper, ledgers_root, bookie) == (False, True)
    assert any("an operator asked for it before the restart" in line for line in bookie.lines)
    assert put_read_only(bookie, False) == {"readOnly": False}
    wait_registered(zookeeper, ledgers_root, bookie, (True, False))
    assert bookie.stop() == 0
    bookie.start()
    assert registered(zookeeper, ledgers_root, bookie) == (True, False)


def test_without_a_kept_status_a_restart_forgets_it(bookie: BookieProcess) -> None:
    bookie.start()
    put_read_only(bookie, True)
    assert bookie.stop() == 0
    assert not any(path.exists() for path in status_files(bookie))
    bookie.start()
    with bookie.connect() as connection:
        assert connection.add(1, [0]) == [Code.OK]


def test_the_newest_status_counts_and_three_fields_are_an_operators(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in "abcd"]
    for directory in directories:
        Path(directory).mkdir()
    assert read_status(directories) is None
    (tmp_path / "a" / "BOOKIE_STATUS").write_text("1,READ_ONLY,2000\n")
    (tmp_path / "b" / "BOOKIE_STATUS").write_text("1,READ_WRITE,1000,false\n")
    (tmp_path / "c" / "BOOKIE_STATUS").write_bytes(b"\xff\x00 torn")
    assert read_status(directories) == BookieMode(read_only=True, manual=True)
    (tmp_path / "b" / "BOOKIE_STATUS").write_text("1,READ_ONLY,3000,false\n")
    assert read_status(directories) == BookieMode(read_only=True, manual=False)
    (tmp_path / "b" / "BOOKIE_STATUS").write_text("1,SLEEPING,4000,false\n")
    assert read_status(directories) == BookieMode(read_only=True, manual=True)
    write_status(directories, BookieMode())
    assert read_status(directories) == BookieMode()
    with pytest.raises(OSError):
        write_status([str(tmp_path / "gone")], BookieMode())


def test_sigterm_while_it_waits_for_its_own_old_session(bookie: BookieProcess) -> None:
    bookie.settings["zkTimeout"] = "60000"
    bookie.start()
    bookie.kill()
    bookie.launch()
    assert bookie.wait_line("waiting for it to end")
    begun = time.monotonic()
    assert bookie.stop() == 0
    assert time.monotonic() - begun < 45
    assert not any("serves on" in line for line in bookie.lines)


def test_stops_soon_without_zookeeper(bookie: BookieProcess, zk_only: LocalCluster, ledgers_root: str) -> None:
    host, _, port = zk_only.zookeepers[0].id.rpartition(":")
    with TcpProxy((host, int(port))) as proxy:
        bookie.settings["metadataServiceUri"] = f"zk+hierarchical://127.0.0.1:{proxy.address[1]}{ledgers_root}"
        bookie.start()
        proxy.set(connects=Connects.REFUSE, cut=True)
        with bookie.connect() as connection:
            assert connection.add(1, [0]) == [Code.OK]
        assert bookie.stop() == 0


def test_an_admin_port_that_is_taken(bookie: BookieProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(bookie.settings["httpServerPort"])))
        taken.listen()
        bookie.launch()
        assert bookie.wait() == 2
    assert any("bookie not started: httpServerPort" in line for line in bookie.lines)
    bookie.start()
    assert not any("not clean" in line for line in bookie.lines), "the storage had been closed cleanly"


def test_sigterm_during_replay_ends_soon_and_leaves_the_mark(bookie: BookieProcess) -> None:
    bookie.start()
    with bookie.connect() as connection:
        assert connection.add(1, range(100)) == [Code.OK] * 100
    bookie.crash()
    last_mark = status_files(bookie)[0].with_name("lastMark")
    kept = last_mark.with_name("kept")
    last_mark.rename(kept)
    os.mkfifo(last_mark)  # the replay waits for somebody to write to it
    bookie.launch()
    assert bookie.wait_line("the last shutdown was not clean")
    assert bookie.stop() == 0
    assert any("stopped before the bookie served" in line for line in bookie.lines)
    assert all(path.with_name("DIRTY").exists() for path in status_files(bookie))
    kept.rename(last_mark)
    bookie.start()
    with bookie.connect() as connection:
        assert [connection.read(1, i) for i in range(100)] == [stored(1, i) for i in range(100)]


def test_an_unclean_shutdown_is_reported(bookie: BookieProcess) -> None:
    bookie.start()
    marks = [path.with_name("DIRTY") for path in status_files(bookie)]
    assert all(path.exists() for path in marks)
    assert bookie.stop() == 0
    assert not any(path.exists() for path in marks)
    marks[1].touch()  # one is enough
    bookie.start()
    assert any("the last shutdown was not clean" in line for line in bookie.lines)
    url = f"http://127.0.0.1:{bookie.settings['httpServerPort']}/api/v1/bookie/reasons"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert json.load(answer)["uncleanShutdown"] is True
