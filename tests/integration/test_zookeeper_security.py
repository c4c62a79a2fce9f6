"""Sessions with ZooKeeper that have a user, znodes that are for their creator alone, and encrypted connections."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.bookie.metadata.zookeeper_settings import ZooKeeperSettings
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.store import LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, MetadataError, MetadataUnavailableError
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, TransactionConflictError
from bk_spark.protocol.quorum import Quorum
from bookie_server.cli import main as bookie_server
from bookie_server.local import LocalCluster
from bookie_server.local.state import DirectoryLock, PortChooser, ZooKeeperPorts
from bookie_server.local.zookeeper import LocalZooKeeper
from tests.support.bookie import BookieProcess
from tests.support.certificates import PASSWORD, Identity, authority, identity
from tests.support.nursery import QuickGroup

USER = "bookies:a secret: with a colon"
WAIT_MS = 60_000
FORBIDDEN = "ZooKeeper does not let this user"


def access(directory: Path, credentials: str = USER, **settings: bool | str) -> ZooKeeperAccess:
    path = directory / f"digest-{uuid.uuid4().hex}"
    path.write_text(credentials + "\n")
    return ZooKeeperAccess(ZooKeeperSettings(zk_digest_file=str(path), **settings))


@pytest.fixture
def closed(zk_only: LocalCluster, tmp_path: Path) -> Iterator[ZooKeeper]:
    """A session whose znodes are for its user alone."""
    with closing(ZooKeeper(zk_only.zookeepers[0].id, access=access(tmp_path, zk_enable_security=True))) as session:
        session.start()
        yield session


def test_znodes_are_for_their_creator_alone(
    zk_only: LocalCluster, zookeeper: ZooKeeper, closed: ZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    path = f"{fresh_root}/a"
    closed.ensure_path(fresh_root)
    closed.create(path, b"1")
    closed.transaction([CreateOp(f"{path}/b", b"2"), CreateOp(f"{path}/c", b"", ephemeral=True)])
    with (
        closing(ZooKeeper(zk_only.zookeepers[0].id, access=access(tmp_path))) as same,
        closing(ZooKeeper(zk_only.zookeepers[0].id, access=access(tmp_path, "bookies:wrong"))) as wrong,
    ):
        same.start()
        wrong.start()
        for stranger in (zookeeper, wrong):
            for call in (
                lambda zk: zk.get(path),
                lambda zk: zk.get_many([path]),
                lambda zk: zk.children(fresh_root),
                lambda zk: zk.set(path, b"mine", -1),
                lambda zk: zk.create(f"{path}/d", b""),
                lambda zk: zk.delete(f"{path}/b"),
                lambda zk: zk.transaction([CheckOp(fresh_root, -1), SetOp(path, b"mine", -1)]),
                lambda zk: zk.transaction([DeleteOp(f"{path}/b", -1)]),
            ):
                with pytest.raises(MetadataError, match=FORBIDDEN) as raised:
                    call(stranger)
                # A conflict would be tried again.
                assert not isinstance(raised.value, TransactionConflictError)
                assert "zkDigestFile" in str(raised.value)
        assert same.get(path).data == b"1"
        assert sorted(same.children(path)) == ["b", "c"]
        assert same.set(path, b"3", 0) == 1
        # Without zkEnableSecurity its own znodes are for everybody.
        same.create(f"{path}/open", b"")
    assert zookeeper.get(f"{path}/open") is not None


def test_a_password_is_nowhere_in_log_or_text(
    zk_only: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    granted = access(tmp_path)
    with closing(ZooKeeper(zk_only.zookeepers[0].id, access=granted)) as session:
        session.start()
        session.exists("/")
    assert "Sending request" in caplog.text
    told = f"{caplog.text} {granted!r} {vars(granted)!r} {session!r} {granted.kazoo_options()!r}"
    assert "a secret" not in told


@pytest.mark.parametrize(
    ("content", "settings", "error"),
    [
        ("hush", {}, r"zkDigestFile: \S+ must hold one line, user:password"),
        (":hush", {}, "must hold one line, user:password"),
        ("user:", {}, "must hold one line, user:password"),
        ("a:hush\nc:d", {}, "must hold one line, user:password"),
        (None, {}, r"zkDigestFile: \S+ cannot be read \(No such file or directory\)"),
        ("", {"zk_digest_file": "", "zk_enable_security": True}, "zkEnableSecurity=true needs zkDigestFile"),
        ("a:b", {"zk_secure": True}, r"zookeeper\.ssl\.trustStore\.location is missing"),
        ("a:b", {"zk_secure": True, "zk_trust_store": "/x/store"}, r"set zookeeper\.ssl\.trustStore\.type"),
        ("a:b", {"zk_secure": True, "zk_trust_store": "/x/ca.pem"}, r"cannot read /x/ca\.pem: No such file"),
    ],
)
def test_wrong_settings_are_named(
    tmp_path: Path, content: str | None, settings: dict[str, bool | str], error: str
) -> None:
    path = tmp_path / "digest"
    if content is not None:
        path.write_text(content)
    given: dict[str, bool | str] = {"zk_digest_file": str(path)} | settings
    with pytest.raises(InvalidArgumentError, match=error) as raised:
        ZooKeeperAccess(ZooKeeperSettings(**given))  # type: ignore[arg-type]
    assert "hush" not in str(raised.value)


def test_a_cluster_whose_znodes_nobody_else_reads(
    zk_only: LocalCluster, zookeeper: ZooKeeper, fresh_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bookie, self-healing, client and log with one user. Strangers are told what to do."""
    digest = tmp_path / "digest"
    digest.write_text(USER)
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{fresh_root}"
    secured = {"zkDigestFile": str(digest), "zkEnableSecurity": "true"}
    bookie = BookieProcess(tmp_path / "bookie", uri, autoRecoveryDaemonEnabled="true", **secured)
    conf = tmp_path / "bookie.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in bookie.settings.items()))
    assert bookie_server(["init", "--conf", str(conf)]) == 0
    config = ClientConfig(zk_digest_file=str(digest), zk_enable_security=True, explicit_lac_interval_ms=100)
    try:
        bookie.start()
        with BlockingClient(uri, config) as client:
            writer = client.create(quorum=Quorum(1, 1, 1))
            writer.append(b"1")
            writer.close()
            assert client.open_for_reading(writer.ledger_id).read(0, 0) == [b"1"]
            settings = LogSettings.create(Quorum(1, 1, 1), DigestType.CRC32C, EntryFormat.RAW, b"p")
            log = LogStore.of(client, f"{fresh_root}/logs").create_log("events", settings, b"p")
            with log.open_writer() as tail:
                tail.append(b"2")
            # The daemon has a session of its own.
            vote = f"{fresh_root}/underreplication/auditorelection"
            _wait(lambda: bool(client.zookeeper.children(vote)))
            paths = _below(client.zookeeper, fresh_root)
        assert f"{fresh_root}/available/{bookie.id}" in paths
        for path in paths:
            with pytest.raises(MetadataError, match=FORBIDDEN):
                zookeeper.get(path)
        with pytest.raises(MetadataError, match=f"{FORBIDDEN}.*zkDigestFile"):
            BlockingClient(uri)
    finally:
        bookie.end()
    stranger = BookieProcess(tmp_path / "stranger", uri)
    stranger.launch()
    assert stranger.wait() == 4
    assert any(FORBIDDEN in line for line in stranger.lines)
    assert "a secret" not in "".join([*bookie.lines, *stranger.lines, *capsys.readouterr()])


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _below(session: ZooKeeper, path: str) -> list[str]:
    return [path, *(one for name in session.children(path) or () for one in _below(session, f"{path}/{name}"))]


class _EncryptedZooKeeper(LocalZooKeeper):
    """Takes encrypted connections on a second port, from clients with a certificate."""

    def __init__(self, directory: Path, group: QuickGroup, ports: ZooKeeperPorts, secure_port: int) -> None:
        super().__init__(1, directory, group, [ports])
        self.secure_port = secure_port

    def _command(self) -> list[str]:
        java, *others = super()._command()
        at = others.index("-cp") + 1
        jars = Path(others[at].split(":")[0]).parent
        others[at] = ":".join([others[at], *map(str, jars.glob("netty-*.jar"))])
        return [java, *others]

    def _config(self, data_directory: Path) -> str:
        (self.directory / "server.pem").write_bytes(_both(identity("zookeeper", hosts=("127.0.0.1",))))
        (self.directory / "ca.pem").write_bytes(authority("ours").pem)
        lines = [
            f"secureClientPort={self.secure_port}",
            "secureClientPortAddress=127.0.0.1",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={self.directory / 'server.pem'}",
            f"ssl.trustStore.location={self.directory / 'ca.pem'}",
            "ssl.clientAuth=need",
        ]
        return super()._config(data_directory) + "\n".join(lines) + "\n"


def _both(own: Identity) -> bytes:
    """As ZooKeeper wants it: key and certificate in one file."""
    return own.key_pem() + own.pem


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_EncryptedZooKeeper]:
    directory = tmp_path_factory.mktemp("encrypted")
    lock = DirectoryLock(directory)
    group = QuickGroup(lock.fd)
    chooser = PortChooser(set())
    ports = ZooKeeperPorts(chooser.choose(), chooser.choose(), chooser.choose())
    server = _EncryptedZooKeeper(directory / "zookeeper", group, ports, chooser.choose())
    try:
        server.start()
        server.wait_ready(WAIT_MS)
        yield server
    finally:
        server.kill()
        group.close()
        lock.release()


def _settings(directory: Path, own: Identity | None, trusted: str = "ours", **more: bool) -> ZooKeeperSettings:
    (directory / "trusted.pem").write_bytes(authority(trusted).pem)
    key_store = ""
    if own is not None:
        key_store = str(directory / "own.p12")
        (directory / "own.p12").write_bytes(own.pkcs12(PASSWORD))
        (directory / "password").write_text(PASSWORD + "\n")
    return ZooKeeperSettings(
        zk_secure=True,
        zk_trust_store=str(directory / "trusted.pem"),
        zk_key_store=key_store,
        zk_key_store_password_path=str(directory / "password") if own is not None else "",
        **more,
    )


def test_an_encrypted_session_with_a_certificate(encrypted: _EncryptedZooKeeper, tmp_path: Path) -> None:
    granted = ZooKeeperAccess(_settings(tmp_path, identity("client")))
    with closing(ZooKeeper(f"127.0.0.1:{encrypted.secure_port}", access=granted, rest_after_ms=200)) as session:
        session.start(WAIT_MS)
        big = bytes(900_000)  # many records of TLS
        session.create("/big", big)
        found = session.get("/big")
        assert found is not None
        assert found.data == big
        _wait(lambda: session.session_id == 0)  # it rests
        assert session.exists("/big") is not None


@pytest.mark.parametrize(
    ("own", "trusted", "host", "error"),
    [
        ("client", "others", "127.0.0.1", r"TLS handshake: the certificate of the peer is refused: "),
        ("client", "ours", "localhost", r"TLS handshake: the certificate of the peer is refused: Hostname mismatch"),
        (None, "ours", "127.0.0.1", "no ZooKeeper server answered"),
    ],
)
def test_who_is_not_trusted_gets_no_session(
    encrypted: _EncryptedZooKeeper, tmp_path: Path, own: str | None, trusted: str, host: str, error: str
) -> None:
    granted = ZooKeeperAccess(_settings(tmp_path, None if own is None else identity(own), trusted))
    with (
        closing(ZooKeeper(f"{host}:{encrypted.secure_port}", access=granted)) as session,
        pytest.raises(MetadataUnavailableError, match=error),
    ):
        session.start(3_000)


def test_a_host_that_is_not_verified_may_have_another_name(encrypted: _EncryptedZooKeeper, tmp_path: Path) -> None:
    settings = _settings(tmp_path, identity("client"), zk_hostname_verification=False)
    with closing(ZooKeeper(f"localhost:{encrypted.secure_port}", access=ZooKeeperAccess(settings))) as session:
        session.start(WAIT_MS)
        assert session.exists("/") is not None
