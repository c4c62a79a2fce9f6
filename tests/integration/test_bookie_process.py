"""The bookie as a process: identity, registration, refusals with a reason and nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.cookie import Cookie
from bk_spark.protocol.metadata.registration import BookieServiceInfo, native_service_info
from bookie_server.local import LocalCluster
from tests.support.bookie import KEY, BookieProcess, Connection, add_frame, free_port, stored
from tests.support.tcp_proxy import SWALLOWING, TcpProxy


@pytest.fixture
def uri(zk_only: LocalCluster, ledgers_root: str) -> str:
    return f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"


@pytest.fixture
def bookie(tmp_path: Path, uri: str) -> Iterator[BookieProcess]:
    process = BookieProcess(tmp_path / "bookie", uri)
    yield process
    process.end()


def wait_for(zookeeper: ZooKeeper, path: str, *, there: bool) -> None:
    """Wait until ``path`` is there, or is not."""
    while True:
        changed = threading.Event()

        def wake(_path: str, changed: threading.Event = changed) -> None:
            changed.set()

        if (zookeeper.exists(path, wake) is not None) == there:
            return
        assert changed.wait(60)


def test_start_serve_stop_and_again(
    bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str, tmp_path: Path
) -> None:
    bookie.settings["zkTimeout"] = "60000"
    bookie.start()
    node = zookeeper.get(f"{ledgers_root}/available/{bookie.id}")
    assert node is not None
    assert node.owner_session != 0
    assert BookieServiceInfo.decode(node.data, bookie.id) == native_service_info("127.0.0.1", bookie.port)
    cookie = zookeeper.get(f"{ledgers_root}/cookies/{bookie.id}")
    assert cookie is not None
    for directory in ("journal", "ledgers"):
        assert (bookie.directory / directory / "current" / "VERSION").read_bytes() == cookie.data
    instance = zookeeper.get(f"{ledgers_root}/INSTANCEID")
    assert instance is not None
    assert Cookie.decode(cookie.data, "cookie") == Cookie(
        bookie.id,
        str(bookie.directory / "journal"),
        f"1\t{bookie.directory / 'ledgers'}",
        instance.data.decode(),
    )
    dirty = bookie.directory / "ledgers" / "current" / "DIRTY"
    assert dirty.exists()
    with bookie.connect() as connection:
        assert connection.add(1, range(5)) == [Code.OK] * 5

    assert bookie.stop() == 0
    assert not dirty.exists()
    assert zookeeper.exists(f"{ledgers_root}/available/{bookie.id}") is None
    bookie.start()
    assert not any("not clean" in line for line in bookie.lines)
    with bookie.connect() as connection:
        assert connection.read(1, 4) == stored(1, 4)

    # The session of a process that was killed goes on for a while.
    bookie.kill()
    bookie.launch()
    assert bookie.wait_line("waiting for it to end")
    assert not any("serves on" in line for line in bookie.lines)
    zookeeper.delete(f"{ledgers_root}/available/{bookie.id}")
    assert bookie.wait_line("serves on")
    assert any("not clean" in line for line in bookie.lines)
    with bookie.connect() as connection:
        assert connection.read(1, 4) == stored(1, 4)


def test_registers_again_when_its_session_expired(
    bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    bookie.start()
    path = f"{ledgers_root}/available/{bookie.id}"
    bookie.signal(signal.SIGSTOP)
    wait_for(zookeeper, path, there=False)
    bookie.signal(signal.SIGCONT)
    wait_for(zookeeper, path, there=True)
    with bookie.connect() as connection:
        assert connection.add(1, range(5)) == [Code.OK] * 5
    assert bookie.stop() == 0


def refused(process: BookieProcess, code: int, *says: str) -> None:
    """``process`` does not start, with ``code`` and one line that says why."""
    process.launch()
    assert process.wait() == code, process.lines
    reasons = [line for line in process.lines if "level=CRITICAL" in line]
    assert len(reasons) == 1, process.lines
    for text in says:
        assert text in reasons[0]
    assert not any("Traceback" in line for line in process.lines)


def test_a_file_in_the_place_of_a_directory(bookie: BookieProcess, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not ours")
    for name in (file, file / "below"):
        bookie.settings["ledgerDirectories"] = str(name)
        refused(bookie, 5, f"cannot use directory {name}", f"{file} is not a directory")
    assert file.read_text() == "not ours"


def test_a_busy_port(bookie: BookieProcess, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", bookie.port))
        taken.listen()
        refused(bookie, 2, f"127.0.0.1:{bookie.port}", "Address already in use")
    assert not (bookie.directory / "journal").exists()


def test_no_zookeeper(tmp_path: Path) -> None:
    port = free_port()
    process = BookieProcess(tmp_path / "bookie", f"zk://127.0.0.1:{port}/ledgers")
    refused(process, 4, f"127.0.0.1:{port}", "metadataServiceUri")
    assert not (process.directory / "journal").exists()


def test_no_cluster(tmp_path: Path, zk_only: LocalCluster) -> None:
    process = BookieProcess(tmp_path / "bookie", f"zk://{zk_only.zookeepers[0].id}/nowhere")
    refused(process, 4, "no BookKeeper cluster is initialised", "/nowhere/LAYOUT")
    assert not (process.directory / "journal").exists()


def test_a_wrong_value(bookie: BookieProcess) -> None:
    bookie.settings["journalMaxSizeMB"] = "big"
    refused(bookie, 1, "journalMaxSizeMB: 'big' must be a whole number from 1 to 1048576")


def test_a_directory_of_another_bookie(bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str) -> None:
    bookie.start()
    assert bookie.stop() == 0
    before = sorted(path for path in bookie.directory.rglob("*"))
    stranger = BookieProcess(bookie.directory, bookie.settings["metadataServiceUri"])
    refused(stranger, 5, "VERSION belongs to another bookie", f"bookieHost: '{stranger.id}' / '{bookie.id}'")
    assert zookeeper.exists(f"{ledgers_root}/cookies/{stranger.id}") is None
    assert zookeeper.exists(f"{ledgers_root}/available/{stranger.id}") is None
    assert sorted(path for path in bookie.directory.rglob("*")) == before


def test_an_id_whose_directories_changed(bookie: BookieProcess, tmp_path: Path) -> None:
    bookie.start()
    assert bookie.stop() == 0
    bookie.settings["ledgerDirectories"] = str(tmp_path / "elsewhere")
    refused(bookie, 5, "znode", f"cookies/{bookie.id}", "ledgerDirs: ", "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("lost", [("journal",), ("ledgers",), ("journal", "ledgers")], ids="+".join)
def test_c6_a_wiped_disk_refuses_to_start(bookie: BookieProcess, lost: tuple[str, ...]) -> None:
    """The same identity without its data would answer "absent" for what it had acknowledged."""
    bookie.start()
    with bookie.connect() as connection:
        assert connection.add(1, range(5)) == [Code.OK] * 5
    assert bookie.stop() == 0
    for name in lost:
        (bookie.directory / name).rename(bookie.directory / f"lost {name}")
    refused(bookie, 5, "there is no current/VERSION in", *(str(bookie.directory / name) for name in lost))
    for name in lost:
        assert not (bookie.directory / name).exists()
    # An empty directory, as after a disk was replaced, is no better.
    for name in lost:
        (bookie.directory / name).mkdir()
    refused(bookie, 5, "there is no current/VERSION in")
    for name in lost:
        assert list((bookie.directory / name).iterdir()) == []
        (bookie.directory / name).rmdir()
        (bookie.directory / f"lost {name}").rename(bookie.directory / name)
    bookie.start()
    with bookie.connect() as connection:
        assert connection.read(1, 4) == stored(1, 4)


def test_a_directory_that_is_not_empty(bookie: BookieProcess) -> None:
    (bookie.directory / "ledgers" / "current").mkdir(parents=True)
    (bookie.directory / "ledgers" / "current" / "0.log").write_bytes(b"something")
    refused(bookie, 5, "holds files but no readable current/VERSION")


def test_a_bookie_that_was_removed_from_the_cluster(
    bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    bookie.start()
    assert bookie.stop() == 0
    zookeeper.delete(f"{ledgers_root}/cookies/{bookie.id}")
    refused(bookie, 5, "is not in ZooKeeper", f"cookies/{bookie.id}")


def test_a_second_process_on_the_same_directory(bookie: BookieProcess) -> None:
    bookie.start()
    second = BookieProcess(bookie.directory, bookie.settings["metadataServiceUri"])
    refused(second, 5, "is in use by another bookie process")
    with bookie.connect() as connection:
        assert connection.add(1, [0]) == [Code.OK]


def test_a_first_start_that_ended_before_the_cookie_was_made(
    bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    bookie.start()
    assert bookie.stop() == 0
    zookeeper.delete(f"{ledgers_root}/cookies/{bookie.id}")
    for directory in ("journal", "ledgers"):
        for path in (bookie.directory / directory / "current").iterdir():
            if path.name != "VERSION":
                path.unlink()
    bookie.start()
    assert zookeeper.exists(f"{ledgers_root}/cookies/{bookie.id}") is not None


def test_sigterm_answers_what_was_accepted(bookie: BookieProcess) -> None:
    bookie.start()
    with bookie.connect() as connection:
        assert connection.add(1, [0]) == [Code.OK]
        connection.send(b"".join(add_frame(1, i, size=100_000) for i in range(1, 41)))
        first = bytes(connection.body())
        assert bookie.stop() == 0
        answers = [first]
        with contextlib.suppress(ConnectionError):
            while True:
                answers.append(bytes(connection.body()))
    answered = [int.from_bytes(answer[16:24], "big") for answer in answers]
    assert all(answer[4:8] == bytes(4) for answer in answers)
    bookie.start()
    with bookie.connect() as connection:
        assert [connection.read(1, i) for i in answered] == [stored(1, i, 100_000) for i in answered]


def test_sigterm_again_and_again_while_zookeeper_does_not_answer(
    tmp_path: Path, zk_only: LocalCluster, uri: str
) -> None:
    """The exit code is that of the first one, although the session with ZooKeeper takes its time to end."""
    host, _, port = zk_only.zookeepers[0].id.rpartition(":")
    with TcpProxy((host, int(port))) as proxy:
        bookie = BookieProcess(tmp_path / "bookie", uri.replace(f":{port}/", f":{proxy.address[1]}/"))
        bookie.start()
        proxy.set(to_server=SWALLOWING, to_client=SWALLOWING)
        try:
            bookie.signal(signal.SIGTERM)
            assert bookie.wait_line("stops")
            ended = threading.Thread(target=bookie.wait_line, args=("no such line",))
            ended.start()
            while ended.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    bookie.signal(signal.SIGTERM)
                ended.join(0.05)
            assert bookie.wait() == 0, bookie.lines
        finally:
            bookie.end()


def test_an_unknown_key_is_a_warning(bookie: BookieProcess) -> None:
    bookie.settings["flushIntervall"] = "5"
    bookie.start()
    assert any("level=WARNING" in line and "did you mean flushInterval?" in line for line in bookie.lines)


def test_a_journal_that_cannot_be_written_makes_the_bookie_read_only_until_it_can(
    bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    bookie.settings |= {"journalMaxSizeMB": "1", "diskCheckInterval": "200"}
    bookie.start()
    (journal,) = (bookie.directory / "journal" / "current").glob("*.txn")
    next_journal = journal.with_name(f"{int(journal.stem, 16) + 1:x}.txn")
    next_journal.mkdir()  # the roll will fail
    with bookie.connect() as connection:
        entry_id, codes = 0, [Code.OK]
        while codes == [Code.OK]:
            codes = connection.add(1, [entry_id])
            entry_id += 1
        assert codes[0] in (Code.IO_ERROR, Code.READ_ONLY)
        failed = entry_id - 1
        assert bookie.wait_line("read-only: source=journal")
        wait_for(zookeeper, f"{ledgers_root}/available/readonly/{bookie.id}", there=True)
        assert connection.read(1, failed - 1) == stored(1, failed - 1)
        next_journal.rmdir()
        assert bookie.wait_line("writable again: gone=journal")
        wait_for(zookeeper, f"{ledgers_root}/available/readonly/{bookie.id}", there=False)
        assert connection.add(1, range(failed, failed + 5)) == [Code.OK] * 5
    bookie.crash()
    bookie.start()
    with bookie.connect() as connection:
        assert [connection.read(1, i) for i in range(failed + 5)] == [stored(1, i) for i in range(failed + 5)]
        assert connection.add(1, [failed + 5], key=bytes(20)) == [Code.UNAUTHORIZED]
        assert connection.fence(1, KEY) == stored(1, failed + 4)


def test_connections_wait_for_nothing_after_the_port_is_open(bookie: BookieProcess) -> None:
    bookie.start()
    connections = [Connection(bookie.port) for _ in range(50)]
    for i, connection in enumerate(connections):
        with connection:
            assert connection.add(i, [0]) == [Code.OK]
