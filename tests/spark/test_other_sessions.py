"""Two Spark sessions: what one wrote the other reads; tasks that fail once; data over unix domain sockets; what Spark
keeps and shows of jobs with passwords; a job that ends as soon as it has saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log import EntryFormat, Log, LogSettings, LogStore
from bk_spark.log.formats.znodes import Policy
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.spark.session_script import ROWS, fingerprint, rows_of
from tests.support.bookie import BookieProcess
from tests.support.certificates import identity, write_pem
from tests.support.connector import Connector
from tests.support.jaas import bookie_keys, client_keys, write_jaas
from tests.support.logs import commit_made_up, listed_ledgers, registered_ledgers
from tests.support.sparks import needs_unix_sockets

#: The first test starts a Spark session, and waits for another one.
pytestmark = pytest.mark.timeout(900)

SECRET = "correct-horse-battery"
#: Passwords of ledgers, of users and of a key store.
SECRETS = {
    "password": "pw-of-the-ledgers",
    "wrong": "pw-of-no-ledger",
    "bookkeeper": "pw-of-bookies",
    "spark": "pw-of-spark",
    "wrong user": "pw-of-nobody",
    "key store": "pw-of-a-key-store",
}
_REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def parents_log(connector: Connector) -> str:
    """A raw log that this session writes, in two appends."""
    log = f"sessions-parent-{uuid.uuid4().hex[:8]}"
    for start in (0, 3000):
        frame = connector.spark.sql(f"select concat('é ', id) value from range({start}, {start + 3000}, 1, 3)")
        connector.write(frame, log, password=SECRET, digestType="HMAC")
    return log


@pytest.fixture(scope="module")
def guarded(zk_only: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A cluster of one bookie that requires TLS with certificates, and a login; and what clients of it need."""
    directory = tmp_path_factory.mktemp("guarded")
    users = {name: SECRETS[name] for name in ("bookkeeper", "spark")}
    keys = write_pem(directory / "tls", identity("bookie")) | {"tlsClientAuthentication": "true", "tlsRequired": "true"}
    keys |= bookie_keys(write_jaas(directory / "bookie.jaas", "bookkeeper", users["bookkeeper"], users))
    root = f"/guarded-{uuid.uuid4().hex[:8]}"
    session = ZooKeeper(zk_only.zookeepers[0].id)
    session.start()
    init_cluster(session, root)
    session.close()
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{root}"
    bookie = BookieProcess(directory / "bookie", uri, **keys, saslJaasClientAllowedIds=".*").start()
    own = write_pem(directory / "client") | {"tlsClientAuthentication": "true", "tlsKeyStoreType": "PKCS12"}
    own |= {"tlsKeyStore": str(directory / "own.p12"), "tlsKeyStorePasswordPath": str(directory / "own.password")}
    (directory / "own.p12").write_bytes(identity("spark", client_only=True).pkcs12(SECRETS["key store"]))
    (directory / "own.password").write_text(SECRETS["key store"])
    given: dict[str, Any] = {"uri": uri, "log_root": f"/logs{root}"}
    for name, user in (("conf", "spark"), ("wrong_conf", "wrong user")):
        login = client_keys(write_jaas(directory / f"{name}.jaas", "spark", SECRETS[user], {}))
        (directory / name).write_text("".join(f"{key}={value}\n" for key, value in (own | login).items()))
        given[name] = str(directory / name)
    yield given | {name: SECRETS[name] for name in ("password", "wrong")}
    bookie.end()


@pytest.fixture(scope="module")
def short_log(logs: LogStore) -> Log:
    """Its retention is due, and only the other session writes it."""
    settings = LogSettings.create(Quorum(3, 2, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
    log = logs.create_log(f"short-{uuid.uuid4().hex[:8]}", settings, b"")
    commit_made_up(log, (5, 500), (5, 500))
    log.set_policy(Policy(retention_size_bytes=1))
    assert log.zookeeper.exists(log.paths.maintenance) is None
    return log


@pytest.fixture(scope="module")
def answer(
    connector: Connector,
    parents_log: str,
    short_log: Log,
    guarded: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What the other session found, and the names of its logs, which are new if tests are run again."""
    names = {name: f"sessions-{name.replace('_', '-')}-{uuid.uuid4().hex[:8]}" for name in ("raw_log", "arrow_log")}
    arrow_log = f"{parents_log}-arrow"
    connector.write(connector.spark.range(1000), arrow_log, entryFormat="arrow")
    given = {
        "directory": str(tmp_path_factory.mktemp("other-session")),
        "uri": connector.metadata_service_uri,
        "parents_log": parents_log,
        "parents_arrow_log": arrow_log,
        "short_log": short_log.name,
        "password": SECRET,
        "guarded": guarded,
        **names,
    }
    path = os.pathsep.join([str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.session_script", json.dumps(given)],
        cwd=_REPOSITORY,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    shown = {"directory": given["directory"], "printed": done.stdout.rpartition("{")[0] + done.stderr}
    return names | shown | json.loads(done.stdout.splitlines()[-1])


def test_a_new_session_reads_what_this_one_wrote(
    connector: Connector, parents_log: str, answer: dict[str, Any]
) -> None:
    frame = connector.read(parents_log, password=SECRET)
    assert frame.count() == 6000
    assert answer["fingerprint"] == fingerprint(frame)
    assert answer["arrow_sum"] == sum(range(1000))


@pytest.mark.parametrize("which", ["raw_log", "arrow_log"])
def test_tasks_that_failed_once_wrote_each_row_once(
    connector: Connector, answer: dict[str, Any], logs: LogStore, which: str
) -> None:
    log = answer[which]
    assert sum(segment.rows for segment in logs.open_log(log).snapshot().segments()) == ROWS
    assert_df_equality(connector.read(log, "value string"), rows_of(connector.spark), ignore_nullable=True)
    # Each task had written to a ledger when it failed, and wrote again to another.
    listed = listed_ledgers(logs.open_log(log))
    assert len(listed) == 2
    assert listed < registered_ledgers(logs.open_log(log)).keys()


@pytest.mark.usefixtures("answer")
def test_a_job_that_saves_and_stops_maintains_its_log(short_log: Log) -> None:
    """Its process ends right after ``save()`` and ``stop()``, and no other process writes the log."""
    snapshot = short_log.snapshot()
    assert snapshot.next_offset == 20
    assert snapshot.first_offset >= 10, "retention ran before the process ended"
    assert short_log.zookeeper.exists(short_log.paths.maintenance) is not None


@needs_unix_sockets
def test_unix_domain_sockets(answer: dict[str, Any]) -> None:
    assert answer["unix_sockets"]


def test_nothing_that_spark_keeps_or_shows_has_a_secret(answer: dict[str, Any]) -> None:
    """Its event log, the pages and the REST API of its UI, checkpoints, and the files of its workers and blocks; for
    batches, streams, and jobs that failed because of a wrong password."""
    directory = Path(answer["directory"])
    texts = {"errors": "\n".join(answer["errors"]), "printed": answer["printed"]}
    for part in ("events", "pages", "checkpoints", "kept-local"):
        files = {path: path.read_bytes() for path in (directory / part).rglob("*") if path.is_file()}
        assert sum(map(len, files.values())), part
        texts |= {str(path.relative_to(directory)): content.decode("latin-1") for path, content in files.items()}

    # Each job is there, and would show its options: their names are, and the file that is no secret.
    events = "".join(text for name, text in texts.items() if name.startswith("events"))
    pages = "".join(text for name, text in texts.items() if name.startswith("pages"))
    for text in (events, pages):
        assert "SparkListenerSQLExecutionStart" in text or "physical plan" in text.lower()
        assert "login failed" in text
    assert "login failed" in texts["errors"]
    assert "password" in texts["errors"]

    assert not {
        (where, secret) for where, text in texts.items() for secret in (SECRET, *SECRETS.values()) if secret in text
    }
