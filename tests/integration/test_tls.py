"""A cluster that requires TLS and clients' certificates: our client, logs, bkctl and self-healing use it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import bk_spark
from bk_spark import BlockingClient, ClientConfig, Quorum, errors
from bk_spark.bkctl import main
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess
from tests.support.certificates import identity, write_pem
from tests.support.clusters import new_cluster, serving
from tests.support.registrations import forget

BOTH = Quorum(2, 2, 2)
HEALING = {
    "autoRecoveryDaemonEnabled": "true",
    "rwRereplicateBackoffMs": "200",
    "openLedgerRereplicationGracePeriod": "1000",
}
_PATIENCE_S = 60


class Secured:
    """Two bookies."""

    def __init__(self, directory: Path, uri: str) -> None:
        self.uri = uri
        self.directory = directory
        keys = write_pem(directory / "tls", identity("bookie"))
        self._keys = keys | {"tlsClientAuthentication": "true", "tlsRequired": "true"}
        self.bookies = [self.bookie(f"b{i}") for i in range(2)]
        self.client_keys = write_pem(directory / "client", identity("client", client_only=True)) | {
            "tlsClientAuthentication": "true"
        }
        self.conf = directory / "client.conf"
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in self.client_keys.items()))

    def bookie(self, name: str, **settings: str) -> BookieProcess:
        return BookieProcess(self.directory / name, self.uri, **self._keys, **settings)

    def config(self, **more: str) -> ClientConfig:
        return ClientConfig.from_properties(self.client_keys | more)


@pytest.fixture(scope="module")
def secured(zk_only: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    cluster = Secured(tmp_path_factory.mktemp("tls"), new_cluster(zk_only, "tls"))
    with serving(cluster.bookies):
        yield cluster


def append(client: BlockingClient, payload: bytes) -> None:
    with closing(client.create(quorum=BOTH)) as writer:
        writer.append_many([payload])


@pytest.mark.parametrize("v2", ["true", "false"], ids=["v2", "v3"])
def test_a_ledger_is_written_read_and_recovered(secured: Secured, v2: str) -> None:
    with BlockingClient(secured.uri, secured.config(useV2WireProtocol=v2)) as client:
        with closing(client.create(quorum=BOTH)) as writer:
            writer.append_many([b"%d" % i * 1000 for i in range(500)])
        entries = client.open_for_reading(writer.ledger_id).read(0, 499)
        assert [bytes(each) for each in entries] == [b"%d" % i * 1000 for i in range(500)]
        left = client.create(quorum=BOTH)
        left.append_many([b"left open"])
        with BlockingClient(secured.uri, secured.config(useV2WireProtocol=v2)) as other:
            assert other.recover_and_open(left.ledger_id).last_add_confirmed == 0


def test_a_log_is_written_and_read(secured: Secured) -> None:
    with bk_spark.connect(secured.uri, config=secured.config(explicitLacInterval="100")) as bk:
        log = bk.create_log("clicks", quorum=BOTH)
        with log.open_writer() as writer:
            writer.append_many([b"first", b"second"])
        blocks = log.open_reader().read(0, 2)
        assert [bytes(payload) for block in blocks for payload in block.payloads] == [b"first", b"second"]


def test_bkctl_uses_the_file_of_the_client(
    secured: Secured, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = ["--metadata-service-uri", secured.uri]
    assert main([*uri, "--client-conf", str(secured.conf), "bookiesanity", secured.bookies[0].id]) == 0
    assert main([*uri, "bookiesanity", "--timeout", "5", secured.bookies[0].id]) == 1
    assert "UNAUTHORIZED" in capsys.readouterr().err
    monkeypatch.setenv("BK_CLIENT_CONF", str(secured.conf))
    assert main([*uri, "bookieinfo"]) == 0
    monkeypatch.setenv("BK_CLIENT_CONF", str(secured.directory / "none"))
    assert main([*uri, "bookieinfo"]) == 1
    assert "--client-conf: cannot read configuration file" in capsys.readouterr().err


@pytest.mark.parametrize("healing", [False, True])
def test_wrong_certificates_stop_a_bookie_before_it_begins(secured: Secured, tmp_path: Path, healing: bool) -> None:
    keys = write_pem(tmp_path / "tls", identity("bookie"))
    # Its own client needs to know whom to trust.
    wrong = "tlsTrustStore" if healing else "tlsKeyStore"
    bookie = BookieProcess(tmp_path / "bookie", secured.uri, **keys | {wrong: ""})
    if healing:
        bookie.settings["autoRecoveryDaemonEnabled"] = "true"
    bookie.launch()
    assert bookie.wait() == 1
    assert any(f"bookie not started: {wrong} is missing" in line for line in bookie.lines)


def test_a_client_in_clear_is_refused_with_the_reason(secured: Secured) -> None:
    with BlockingClient(secured.uri) as client, pytest.raises(errors.UnauthorizedError) as caught:
        append(client, b"in clear")
    assert "or TLS (tlsRequired)" in str(caught.value)
    assert secured.bookies[0].wait_line("it is not encrypted, and tlsRequired=true")


def test_a_client_that_trusts_another_authority_says_why(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = write_pem(tmp_path, identity("client", client_only=True), "others") | {"tlsClientAuthentication": "true"}
    config = ClientConfig.from_properties(keys)
    with BlockingClient(secured.uri, config) as client, pytest.raises(errors.NotEnoughBookiesError) as caught:
        append(client, b"to whom?")
    assert "; no TLS connection: the certificate of the peer is refused: self-signed" in str(caught.value)
    assert "the certificate of the peer is refused" in caplog.text


def test_a_lost_copy_is_made_again_over_tls(secured: Secured) -> None:
    lost, mends = secured.bookie("lost"), secured.bookie("mends", **HEALING)
    with ExitStack() as stack, BlockingClient(secured.uri, secured.config()) as client:
        for bookie in (lost, mends):
            stack.callback(forget, secured.uri, [bookie.id])
            stack.callback(bookie.end)
            bookie.start()
        with closing(client.create(quorum=BOTH, ensemble=[secured.bookies[0].id, lost.id])) as writer:
            writer.append_many([b"%d" % i * 100 for i in range(200)])
        lost.crash()
        until = time.monotonic() + _PATIENCE_S
        while lost.id in client.metadata(writer.ledger_id).segments[0].ensemble:
            assert time.monotonic() < until, "\n".join(mends.lines)
            time.sleep(0.1)
        assert len(list(client.open_for_reading(writer.ledger_id).read(0, 199))) == 200
