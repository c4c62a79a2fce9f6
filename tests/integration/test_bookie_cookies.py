"""Which directories a bookie accepts as its own, with real directories and a real ZooKeeper."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import CookieMismatchError, OutcomeUnknownError
from bk_spark.protocol.metadata.cookie import Cookie
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.config.config import BookieConfig
from bookie_server.identity.cluster_identity import ClusterIdentity, ForeignClusterError
from bookie_server.identity.cookies import all_directories, check_cookies
from bookie_server.local import LocalCluster
from tests.integration.test_c13_lost_replies import at_each_request
from tests.support.zookeeper_proxy import Break, ZooKeeperProxy
from tests.support.zookeeper_sessions import reconnecting_soon


class Directories:
    """A bookie's configuration with directories below ``base``."""

    def __init__(self, base: Path, zookeeper: ZooKeeper, root: str) -> None:
        self.base = base
        self.zookeeper = zookeeper
        self.path = f"{root}/cookies/b:1"
        self.instance_path = f"{root}/INSTANCEID"
        self.config = BookieConfig(MetadataServiceUri.parse(f"zk://{zookeeper.servers}{root}"), "b:1", "b", "0.0.0.0")
        self.set(journal=["j0", "j1"], ledger=["l0", "l1"], index=["i0"])

    def set(self, **directories: list[str]) -> None:
        values: dict[str, Any] = {
            f"{kind}_directories": tuple(str(self.base / name) for name in names) for kind, names in directories.items()
        }
        self.config = replace(self.config, **values)

    def check(self, *, expansion: bool = False) -> ClusterIdentity:
        for directory in all_directories(self.config):
            Path(directory).mkdir(exist_ok=True)
        return check_cookies(self.zookeeper, replace(self.config, allow_storage_expansion=expansion))

    def refused(self, *says: str, expansion: bool = False) -> None:
        """The check fails, saying so, and writes nothing."""
        for directory in all_directories(self.config):
            Path(directory).mkdir(exist_ok=True)
        before = self.content()
        with pytest.raises(CookieMismatchError) as caught:
            self.check(expansion=expansion)
        for text in says:
            assert text in str(caught.value)
        assert self.content() == before

    def content(self) -> dict[str, bytes]:
        """Every file, and the znode."""
        node = self.zookeeper.get(self.path)
        files = {str(path): path.read_bytes() for path in self.base.rglob("*") if path.is_file()}
        return files | ({"znode": node.data} if node is not None else {})

    def stamp(self, name: str) -> Path:
        return self.base / name / "current" / "VERSION"

    def use(self, name: str) -> None:
        (self.base / name / "current" / "0.log").write_bytes(b"entries")


@pytest.fixture
def directories(tmp_path: Path, zookeeper: ZooKeeper, ledgers_root: str) -> Directories:
    return Directories(tmp_path, zookeeper, ledgers_root)


def test_all_directories_and_zookeeper_get_the_same_cookie(directories: Directories) -> None:
    directories.check()
    contents = directories.content()
    assert len(contents) == 6
    assert len(set(contents.values())) == 1
    base = directories.base
    cookie = Cookie.decode(contents["znode"], "znode")
    assert cookie.journal_directories == f"{base}/j0,{base}/j1"
    assert cookie.ledger_directories == f"2\t{base}/l0\t{base}/l1"
    assert cookie.index_directories == f"1\t{base}/i0"
    directories.check()
    assert directories.content() == contents


@pytest.mark.parametrize("name", ["j1", "l0", "i0"])
@pytest.mark.parametrize("with_znode", [True, False])
def test_c6_one_wiped_disk_of_several_is_refused(directories: Directories, name: str, with_znode: bool) -> None:
    """Also where the cookie in ZooKeeper was lost with it: the other directories show that there was data."""
    directories.check()
    for used in ("j0", "l0", "l1"):
        directories.use(used)
    shutil.rmtree(directories.base / name)
    if not with_znode:
        directories.zookeeper.delete(directories.path)
    directories.refused(name, "there is no current/VERSION in")
    directories.refused(name, "there is no current/VERSION in", expansion=True)


@pytest.mark.parametrize("stamped", [[], ["j0"], ["j0", "j1", "l0", "l1", "i0"]])
def test_a_first_start_that_ended_half_way_can_be_repeated(directories: Directories, stamped: list[str]) -> None:
    directories.check()
    directories.zookeeper.delete(directories.path)
    for name in ("j0", "j1", "l0", "l1", "i0"):
        if name not in stamped:
            directories.stamp(name).unlink()
            directories.stamp(name).with_name("VERSION.tmp").write_bytes(b"5\nbook")
    directories.check()
    assert len({content for path, content in directories.content().items() if not path.endswith(".tmp")}) == 1


def test_a_torn_stamp(directories: Directories) -> None:
    directories.check()
    directories.zookeeper.delete(directories.path)
    directories.stamp("l1").write_bytes(b"5\nbookieHo")
    directories.check()
    whole = directories.stamp("l0").read_bytes()
    assert directories.stamp("l1").read_bytes() == whole
    # With data beside it nobody but the operator knows whose they are.
    directories.use("l1")
    directories.stamp("l1").write_bytes(b"")
    directories.refused(str(directories.stamp("l1")), "is not a cookie", "copy it from there")
    directories.stamp("l1").write_bytes(whole)
    directories.check()


def test_g1_the_cookie_names_the_only_cluster_that_is_believed(directories: Directories) -> None:
    directories.check()
    directories.use("l0")
    instance = directories.zookeeper.get(directories.instance_path)
    assert instance is not None
    found = directories.check()
    assert found.instance_id == instance.data.decode()
    assert found.cookie.encode() == directories.stamp("l0").read_bytes()
    found.check(directories.zookeeper.get_many(found.paths))
    # Another instance, or none: another cluster. A first start where there is none cannot know better.
    directories.zookeeper.set(directories.instance_path, b"another", instance.version)
    directories.refused("instanceId", "another")
    directories.zookeeper.delete(directories.instance_path)
    directories.refused("INSTANCEID is missing", "restore that znode")


def test_g1_a_cookie_of_an_old_release_that_names_no_cluster(directories: Directories) -> None:
    """The instance that is there at the start is held to, and the cookie must be there."""
    cookie = directories.check().cookie
    directories.use("l0")
    old = replace(cookie, instance_id=None).encode()
    for name in ("j0", "j1", "l0", "l1", "i0"):
        directories.stamp(name).write_bytes(old)
    directories.zookeeper.set(directories.path, old, 0)
    found = directories.check()
    assert found.instance_id == cookie.instance_id
    zookeeper = directories.zookeeper
    found.check(zookeeper.get_many(found.paths))
    zookeeper.set(directories.instance_path, b"another", 0)
    with pytest.raises(ForeignClusterError, match="INSTANCEID is 'another'"):
        found.check(zookeeper.get_many(found.paths))
    zookeeper.set(directories.instance_path, (cookie.instance_id or "").encode(), 1)
    zookeeper.delete(directories.path)
    with pytest.raises(ForeignClusterError, match="is missing"):
        found.check(zookeeper.get_many(found.paths))
    for content in (b"garbage", replace(cookie, journal_directories="/other").encode()):
        zookeeper.create(directories.path, content)
        with pytest.raises(ForeignClusterError, match="not a cookie|differs"):
            found.check(zookeeper.get_many(found.paths))
        zookeeper.delete(directories.path)


def test_a_used_directory_without_its_cookie_in_zookeeper(directories: Directories) -> None:
    directories.check()
    directories.use("l0")
    directories.zookeeper.delete(directories.path)
    directories.refused("l0 was stamped for bookie b:1 and used", "is not in ZooKeeper")


def test_directories_are_added_only_where_that_is_allowed(directories: Directories) -> None:
    directories.check()
    directories.use("l0")
    directories.set(ledger=["l0", "l1", "l2"], index=["i0", "i1"])
    directories.refused("ledgerDirs", "l2")
    directories.check(expansion=True)
    contents = {path: content for path, content in directories.content().items() if not path.endswith(".log")}
    assert len(contents) == 8
    assert len(set(contents.values())) == 1
    assert "l2" in Cookie.decode(contents["znode"], "znode").ledger_directories
    directories.check()
    # Back again is no expansion.
    directories.set(ledger=["l0", "l1"], index=["i0"])
    directories.refused("ledgerDirs", expansion=True)


def test_an_expansion_that_ended_half_way_can_be_repeated(directories: Directories) -> None:
    directories.check()
    directories.use("l0")
    old = directories.stamp("l0").read_bytes()
    directories.set(ledger=["l0", "l1", "l2"])
    directories.check(expansion=True)
    new = directories.stamp("l0").read_bytes()
    node = directories.zookeeper.get(directories.path)
    assert node is not None
    # As after a crash in front of the last steps.
    directories.zookeeper.set(directories.path, old, node.version)
    directories.stamp("l1").write_bytes(old)
    directories.check(expansion=True)
    assert {directories.stamp(name).read_bytes() for name in ("j0", "l0", "l1", "l2", "i0")} == {new}
    node = directories.zookeeper.get(directories.path)
    assert node is not None
    assert node.data == new


@pytest.mark.parametrize("stamped", [["j0"], ["j0", "j1", "l0", "l1"]])
def test_an_expansion_that_ended_before_the_new_directory_was_stamped(
    directories: Directories, stamped: list[str]
) -> None:
    """The stamps name it already, the cookie in ZooKeeper does not: it was never used."""
    directories.check()
    directories.use("l0")
    names = ("j0", "j1", "l0", "l1", "i0")
    old = {name: directories.stamp(name).read_bytes() for name in names}
    node = directories.zookeeper.get(directories.path)
    assert node is not None
    directories.set(ledger=["l0", "l1", "l2"])
    directories.check(expansion=True)
    new = directories.stamp("l0").read_bytes()
    now = directories.zookeeper.get(directories.path)
    assert now is not None
    directories.zookeeper.set(directories.path, node.data, now.version)
    for name in set(names) - set(stamped):
        directories.stamp(name).write_bytes(old[name])
    directories.stamp("l2").unlink()
    directories.check(expansion=True)
    assert {directories.stamp(name).read_bytes() for name in (*names, "l2")} == {new}
    # From now on it is used: without its stamp it is lost.
    shutil.rmtree(directories.base / "l2")
    directories.refused(f"there is no current/VERSION in {directories.base / 'l2'}", expansion=True)


def test_what_is_added_must_be_empty_and_new(directories: Directories) -> None:
    directories.check()
    directories.use("l0")
    directories.set(ledger=["l0", "l1", "l2"])
    (directories.base / "l2" / "current").mkdir(parents=True)
    directories.use("l2")
    directories.refused("l2 holds files", "a directory to be added", expansion=True)
    shutil.rmtree(directories.base / "l2")
    shutil.rmtree(directories.base / "l1")
    directories.refused(f"there is no current/VERSION in {directories.base / 'l1'}", expansion=True)


def test_journals_are_never_added(directories: Directories) -> None:
    directories.check()
    directories.set(journal=["j0", "j1", "j2"])
    directories.refused("journalDir", expansion=True)


def test_the_order_of_directories_counts(directories: Directories) -> None:
    directories.check()
    directories.set(journal=["j1", "j0"])
    directories.refused("journalDir: ")


@pytest.fixture
def proxy(zk_only: LocalCluster) -> Iterator[ZooKeeperProxy]:
    with ZooKeeperProxy(zk_only.zookeepers[0].id) as running:
        yield running


@pytest.mark.parametrize("how", Break)
def test_c13_a_cookie_is_stored_whatever_request_or_reply_is_lost(
    tmp_path: Path, proxy: ZooKeeperProxy, ledgers_root: str, how: Break
) -> None:
    """A first start, and then one that adds a directory."""
    session = reconnecting_soon(ZooKeeper(proxy.address, session_timeout_ms=30_000, operation_timeout_ms=30_000))
    session.start()
    numbers = itertools.count()
    made: list[Directories] = []

    def first_start() -> None:
        base = tmp_path / str(next(numbers))
        base.mkdir()
        directories = Directories(base, session, ledgers_root)
        directories.config = replace(directories.config, bookie_id=f"{base.name}:1")
        directories.path = f"{ledgers_root}/cookies/{base.name}:1"
        directories.check()
        assert len(set(directories.content().values())) == 1
        made.append(directories)

    def expansion() -> None:
        directories = made.pop()
        directories.set(ledger=["l0", "l1", "l2"])
        directories.check(expansion=True)
        contents = directories.content()
        assert len(contents) == 7
        assert len(set(contents.values())) == 1

    try:
        assert at_each_request(proxy, how, first_start) >= 3
        assert at_each_request(proxy, how, expansion) >= 3
    finally:
        session.close()


def test_c13_an_expansion_beside_another_one_is_refused(
    directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the change is lost, and the cookie that is there is somebody else's."""
    directories.check()
    directories.set(ledger=["l0", "l1", "l2"])
    other = replace(
        Cookie.decode(directories.zookeeper.get(directories.path).data, "znode"), journal_directories="/other"
    )

    def lost(zookeeper: ZooKeeper, path: str, data: bytes, version: int) -> int:
        change(zookeeper, path, other.encode(), version)
        raise OutcomeUnknownError("the reply was lost")

    change = ZooKeeper.set
    monkeypatch.setattr(ZooKeeper, "set", lost)
    with pytest.raises(CookieMismatchError, match="was changed by another process meanwhile"):
        directories.check(expansion=True)
