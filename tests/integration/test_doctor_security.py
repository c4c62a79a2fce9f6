"""``bkctl doctor`` on clusters with TLS, logins and gRPC: it connects as clients do, and says what is wrong."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bkctl import main
from bk_spark.bkctl.doctor import certificates
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess
from tests.support.certificates import identity, write_pem
from tests.support.clusters import new_cluster, serving
from tests.support.jaas import bookie_keys, client_keys, write_jaas
from tests.support.programs import passing_python
from tests.support.servers import WITH_GRPC

_DAY = datetime.timedelta(days=1)


class Doctor:
    """Findings by check, with the settings of a client."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._conf = directory / "client.conf"
        self._python = passing_python(directory)
        self._capsys = capsys

    def __call__(self, uri: str, keys: dict[str, str]) -> dict[str, dict[str, Any]]:
        self._conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        common = ["--metadata-service-uri", uri, "--client-conf", str(self._conf), "--json"]
        main([*common, "doctor", "--python", str(self._python)])
        return {one["check"]: one for one in json.loads(self._capsys.readouterr().out)}


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(tmp_path, capsys)


def _told(finding: dict[str, Any], status: str) -> str:
    assert finding["status"] == status, finding
    return f"{finding['seen']}: {finding['remedy']}"


def test_over_tls(zk_only: LocalCluster, tmp_path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = new_cluster(zk_only, "doctor-tls")
    mutual = {"tlsClientAuthentication": "true"}
    server = write_pem(tmp_path / "server", identity("bookie")) | mutual | {"tlsRequired": "true"}
    client = write_pem(tmp_path / "client", identity("client", client_only=True)) | mutual
    with serving([BookieProcess(tmp_path / "bookie", uri, **server, **WITH_GRPC)]):
        for transport in ("native", "grpc"):
            found = doctor(uri, client | {"transport": transport})
            assert "this client's until " in found["certificates"]["seen"], found
            assert (found["certificates"]["status"], found["bookies reached"]["status"]) == ("ok", "ok")
            assert found["bookies' disks"]["status"] in ("ok", "warning")
            assert "used" in found["bookies' disks"]["seen"] or "nearly full" in found["bookies' disks"]["seen"]
        # A stranger's authority, and none of TLS at all.
        stranger = write_pem(tmp_path / "stranger", identity("client", client_only=True), trusted="theirs") | mutual
        told = _told(doctor(uri, stranger)["bookies reached"], "problem")
        assert "no TLS connection" in told
        assert "compare the keys of TLS in --client-conf" in told
        assert "it needs TLS or a login (--client-conf)" in _told(doctor(uri, {})["bookies' disks"], "warning")
        expired = write_pem(tmp_path / "old", identity("old", expired=True)) | mutual
        found = doctor(uri, expired)
        assert _told(found["certificates"], "problem").startswith("expired: this client's until ")
        assert "zookeeper" not in found
        missing = doctor(uri, client | {"tlsKeyStore": str(tmp_path / "none.pem")})
        assert "none.pem" in _told(missing["certificates"], "problem")
        monkeypatch.setattr(certificates, "_SOON", 31 * _DAY)
        assert _told(doctor(uri, client)["certificates"], "warning").startswith("about to expire: this client's until ")


def test_logins_and_rights(zk_only: LocalCluster, tmp_path: Path, doctor: Doctor) -> None:
    uri = new_cluster(zk_only, "doctor-logins")
    users = {"bookkeeper": "pw-of-bookies", "reader": "pw-of-reader"}
    table = tmp_path / "table"
    table.write_text("all user:bookkeeper\nread user:reader\n")
    jaas = write_jaas(tmp_path / "bookie.jaas", "bookkeeper", users["bookkeeper"], users)
    keys = bookie_keys(jaas) | {"saslJaasClientAllowedIds": ".*", "authorizationFile": str(table)}
    with serving([BookieProcess(tmp_path / "bookie", uri, **keys, **WITH_GRPC)]):
        assert doctor(uri, client_keys(jaas) | {"transport": "grpc"})["bookies reached"]["status"] == "ok"
        found = doctor(uri, client_keys(jaas))
        assert found["bookies reached"]["status"] == "ok"
        assert "refuse" not in found["bookies' disks"]["seen"]
        found = doctor(uri, client_keys(write_jaas(tmp_path / "reader.jaas", "reader", users["reader"])))
        assert found["bookies reached"]["status"] == "ok"
        assert "give it the right admin" in _told(found["bookies' disks"], "warning")
        for transport in ("native", "grpc"):
            wrong = client_keys(write_jaas(tmp_path / "wrong.jaas", "reader", "not-it")) | {"transport": transport}
            found = doctor(uri, wrong)
            told = _told(found["bookies reached"], "problem")
            assert "login failed" in told
            assert "correct the user or the password of --client-conf" in told
            assert "not-it" not in json.dumps(found)


def test_grpc_that_no_bookie_serves(zk_only: LocalCluster, tmp_path: Path, doctor: Doctor) -> None:
    uri = new_cluster(zk_only, "doctor-grpc")
    with serving([BookieProcess(tmp_path / "bookie", uri)]):
        assert doctor(uri, {})["bookies reached"]["status"] == "ok"
        told = _told(doctor(uri, {"transport": "grpc"})["bookies reached"], "problem")
        assert "it does not serve gRPC: set grpcServerEnabled=true there, or transport=native here" in told
