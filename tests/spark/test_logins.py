"""``clientConf`` with a login: reads, writes and streams at bookies that require one; a wrong password is an error that
says so, and no password is to be seen anywhere."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess
from tests.support.connector import Connector
from tests.support.jaas import bookie_keys, client_keys, write_jaas
from tests.support.servers import WITH_GRPC

_USERS = {"bookkeeper": "pw-of-bookies", "spark": "pw-of-spark"}
_WRONG = "pw-that-is-wrong"


@pytest.fixture
def guarded(zk_only: LocalCluster, ledgers_root: str, tmp_path: Path) -> Iterator[str]:
    """The URI of a cluster with one such bookie."""
    jaas = write_jaas(tmp_path / "bookie.jaas", "bookkeeper", _USERS["bookkeeper"], _USERS)
    (tmp_path / "rights").write_text("all user:bookkeeper\nread,write,fence user:spark\n")
    keys = bookie_keys(jaas) | {"saslJaasClientAllowedIds": ".*", "authorizationFile": str(tmp_path / "rights")}
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"
    bookie = BookieProcess(tmp_path / "bookie", uri, **keys, **WITH_GRPC).start()
    yield uri
    bookie.end()


def _conf(path: Path, password: str) -> str:
    keys = client_keys(write_jaas(path.with_suffix(".jaas"), "spark", password, {}))
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return str(path)


def test_spark_logs_in_over_both_transports(
    connector: Connector, guarded: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spark = connector.spark
    where = {"metadataServiceUri": guarded, "logRoot": f"/logs/{uuid.uuid4().hex}"}
    alone = {"ensembleSize": "1", "writeQuorumSize": "1", "ackQuorumSize": "1"}
    right, wrong = _conf(tmp_path / "right.conf", _USERS["spark"]), _conf(tmp_path / "wrong.conf", _WRONG)
    rows = spark.sql("select cast(id as string) value from range(100)").repartition(2)
    shown: list[str] = []
    for transport in ("native", "grpc"):
        names = {"log": f"events-{transport}"}, {"log": f"copy-{transport}"}
        common = where | {"clientConf": right, "transport": transport}
        rows.write.format("bookkeeper").mode("append").options(**common, **alone, **names[0]).save()
        frame = spark.readStream.format("bookkeeper").options(**common, **names[0], startingOffsets="earliest").load()
        checkpoint = tmp_path / f"checkpoint-{transport}"
        query = (
            frame.select("value")
            .writeStream.format("bookkeeper")
            .options(**common, **alone, **names[1], checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None
        again = spark.read.format("bookkeeper").options(**common, **names[1]).load()
        assert sorted(int(row.value) for row in again.collect()) == list(range(100))
        again.explain(extended=True)
        shown += [path.read_bytes().decode("latin-1") for path in checkpoint.rglob("*") if path.is_file()]

        refused = spark.read.format("bookkeeper").options(**common | {"clientConf": wrong}, **names[0])
        with pytest.raises(PySparkException, match="login failed") as raised:
            refused.load().collect()
        shown.append(str(raised.value) + repr(raised.value))
        write = rows.write.format("bookkeeper").mode("append").options(**common | {"clientConf": wrong}, **names[0])
        with pytest.raises(PySparkException, match="login failed") as raised:
            write.save()
        shown.append(str(raised.value) + repr(raised.value))
    printed = capfd.readouterr()
    shown += [printed.out, printed.err, *connector.plans()]
    assert len(shown) > 10
    assert any("bookkeeper" in text.lower() for text in shown)
    assert not [text[:2000] for text in shown for secret in (*_USERS.values(), _WRONG) if secret in text]
