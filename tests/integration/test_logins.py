"""A cluster whose clients log in, and may do different things: our client, logs, bkctl and self-healing use it."""

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
from tests.support.clusters import new_cluster, serving
from tests.support.jaas import bookie_keys, client_keys, write_jaas
from tests.support.registrations import forget
from tests.support.servers import WITH_GRPC

BOTH = Quorum(2, 2, 2)
HEALING = {
    "autoRecoveryDaemonEnabled": "true",
    "rwRereplicateBackoffMs": "200",
    "openLedgerRereplicationGracePeriod": "1000",
}
#: None of these may be seen anywhere.
USERS = {"bookkeeper": "pw-of-bookies", "recoverer": "pw-of-recoverer", "writer": "pw-of-writer", "reader": "pw-of-rd"}
TABLE = "all user:bookkeeper\nread,write,fence user:recoverer\nread,write user:writer\nread user:reader\n"
_PATIENCE_S = 60


class Guarded:
    """Two bookies."""

    def __init__(self, directory: Path, uri: str) -> None:
        self.uri = uri
        self.directory = directory
        jaas = write_jaas(directory / "bookie.jaas", "bookkeeper", USERS["bookkeeper"], USERS)
        (directory / "table").write_text(TABLE)
        self._keys = bookie_keys(jaas) | {
            "saslJaasClientAllowedIds": ".*",
            "authorizationFile": str(directory / "table"),
        }
        self.bookies = [self.bookie(f"b{i}") for i in range(2)]

    def bookie(self, name: str, **settings: str) -> BookieProcess:
        return BookieProcess(self.directory / name, self.uri, **self._keys, **WITH_GRPC, **settings)

    def keys(self, user: str) -> dict[str, str]:
        return client_keys(write_jaas(self.directory / f"{user}.jaas", user, USERS[user], {}))

    def client(self, user: str, **more: str) -> BlockingClient:
        return BlockingClient(self.uri, ClientConfig.from_properties(self.keys(user) | more))

    def said(self) -> str:
        return "\n".join(line for bookie in self.bookies for line in bookie.lines)


@pytest.fixture(scope="module")
def guarded(zk_only: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    cluster = Guarded(tmp_path_factory.mktemp("logins"), new_cluster(zk_only, "logins"))
    with serving(cluster.bookies):
        yield cluster
    assert not [password for password in USERS.values() if password in cluster.said()]


@pytest.mark.parametrize(
    "over",
    [{"useV2WireProtocol": "true"}, {"useV2WireProtocol": "false"}, {"transport": "grpc"}],
    ids=["v2", "v3", "grpc"],
)
def test_each_user_may_do_what_the_table_says(guarded: Guarded, over: dict[str, str]) -> None:
    with (
        guarded.client("writer", **over) as writes,
        guarded.client("reader", **over) as reads,
        guarded.client("recoverer", **over) as recovers,
    ):
        writer = writes.create(quorum=BOTH)
        writer.append_many([b"one", b"two"])
        writer.flush()
        # Whoever may read does not stop the writer.
        with pytest.raises(errors.BookKeeperError) as refused:
            reads.recover_and_open(writer.ledger_id)
        assert "UNAUTHORIZED" in str(refused.value)
        writer.append_many([b"three"])
        writer.close()
        assert [bytes(each) for each in reads.open_for_reading(writer.ledger_id).read(0, 2)] == [
            b"one",
            b"two",
            b"three",
        ]
        mine = reads.create(quorum=BOTH)
        mine.append_many([b"not mine to write"])
        with pytest.raises(errors.UnauthorizedError, match="authorizationFile"):
            mine.flush()
        mine.abandon()
        left = writes.create(quorum=BOTH)
        left.append_many([b"left open"])
        left.flush()
        assert recovers.recover_and_open(left.ledger_id).last_add_confirmed == 0
        left.abandon()
    said = guarded.said()
    assert "'user:reader' may do read, and it needs " in said
    # That a client asks whether there is a bookie is not refused.
    assert not [line for line in said.splitlines() if "request from ipv4:" in line and "needs admin" in line]


def test_a_log_is_written_by_who_may_fence_and_read_by_who_may_read(guarded: Guarded) -> None:
    config = ClientConfig.from_properties(guarded.keys("recoverer") | {"explicitLacInterval": "100"})
    with bk_spark.connect(guarded.uri, config=config) as bk:
        log = bk.create_log("clicks-of-users", quorum=BOTH)
        with log.open_writer() as writer:
            writer.append_many([b"first", b"second"])
    with bk_spark.connect(guarded.uri, config=ClientConfig.from_properties(guarded.keys("reader"))) as bk:
        blocks = bk.log("clicks-of-users").open_reader().read(0, 2)
        assert [bytes(payload) for block in blocks for payload in block.payloads] == [b"first", b"second"]


def test_bkctl_logs_in_with_the_file_of_the_client(
    guarded: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = ["--metadata-service-uri", guarded.uri]
    for user, allowed in (("bookkeeper", True), ("writer", False)):
        conf = tmp_path / f"{user}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in guarded.keys(user).items()))
        assert main([*uri, "--client-conf", str(conf), "bookieinfo"]) == 0
        said = "".join(capsys.readouterr())
        assert ("UNAUTHORIZED" in said) != allowed
        assert "pw-of" not in said
        assert main([*uri, "--client-conf", str(conf), "bookiesanity", guarded.bookies[0].id]) == 0
    assert main([*uri, "bookiesanity", "--timeout", "5", guarded.bookies[0].id]) == 1


def test_wrong_files_stop_a_bookie_before_it_begins(guarded: Guarded, tmp_path: Path) -> None:
    jaas = write_jaas(tmp_path / "jaas.conf", users={"a": "pw-of-a"})
    (tmp_path / "no-auditor").write_text((tmp_path / "jaas.conf").read_text().replace("Auditor", "Other"))
    (tmp_path / "no-auditor").chmod(0o600)
    for settings, says in (
        ({"authorizationFile": str(tmp_path / "none")}, "authorizationFile: "),
        ({**bookie_keys(str(tmp_path / "no-auditor")), **HEALING}, "has no section Auditor"),
        ({**bookie_keys(jaas), "saslJaasBookieSectionName": "Nobody"}, "has no section Nobody"),
    ):
        bookie = BookieProcess(tmp_path / f"b{len(says)}", guarded.uri, **settings)
        bookie.launch()
        assert bookie.wait() == 1
        assert any("bookie not started: " in line and says in line for line in bookie.lines), bookie.lines


def test_a_lost_copy_is_made_again_by_bookies_that_log_in(guarded: Guarded) -> None:
    lost, mends = guarded.bookie("lost"), guarded.bookie("mends", **HEALING)
    with ExitStack() as stack, guarded.client("writer") as client:
        for bookie in (lost, mends):
            stack.callback(forget, guarded.uri, [bookie.id])
            stack.callback(bookie.end)
            bookie.start()
        with closing(client.create(quorum=BOTH, ensemble=[guarded.bookies[0].id, lost.id])) as writer:
            writer.append_many([b"%d" % i * 100 for i in range(200)])
        lost.crash()
        until = time.monotonic() + _PATIENCE_S
        while lost.id in client.metadata(writer.ledger_id).segments[0].ensemble:
            assert time.monotonic() < until, "\n".join(mends.lines)
            time.sleep(0.1)
        assert len(list(client.open_for_reading(writer.ledger_id).read(0, 199))) == 200
