"""Certificates and keys from files in each of Apache's forms, and what is wrong with them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.bookie.tls.reasons import reason_of
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.bookie.tls.suites import SUITES, restrict
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.settings.setting import settings_of
from bookie_server.local.certificates import bookie_keys, prepare
from tests.support.certificates import PASSWORD, identity, write_pem

_SETTINGS = settings_of(TlsSettings)
_FIELDS = {setting.name: field for field, setting in _SETTINGS.items()}


def contexts(keys: dict[str, str], *, server_side: bool = True) -> TlsContexts:
    values = {_FIELDS[key]: _SETTINGS[_FIELDS[key]].parse(text) for key, text in keys.items()}
    return TlsContexts(TlsSettings(**values), server_side=server_side)


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake in memory. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    done = [False, False]
    while not all(done):
        for i, end in enumerate(ends):
            try:
                end.do_handshake()
                done[i] = True
            except ssl.SSLWantReadError:
                pass
    return ends


@pytest.fixture
def pem(tmp_path: Path) -> dict[str, str]:
    return write_pem(tmp_path, identity("bookie"))


@pytest.fixture
def password(tmp_path: Path) -> str:
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return str(tmp_path / "password")


@pytest.mark.parametrize("kind", ["PEM", "PEM with a password", "PKCS12", "JKS"])
def test_every_form_of_key_and_trust_store_works_with_every_other(
    tmp_path: Path, pem: dict[str, str], password: str, kind: str
) -> None:
    """JKS is what a JDK since 9 makes under this name: PKCS#12."""
    own, keys = identity("bookie"), dict(pem)
    if kind == "PEM with a password":
        (tmp_path / "locked.pem").write_bytes(own.key_pem(PASSWORD))
        keys |= {"tlsKeyStore": str(tmp_path / "locked.pem"), "tlsKeyStorePasswordPath": password}
    elif kind != "PEM":
        store = tmp_path / "store"
        store.write_bytes(own.pkcs12(PASSWORD))
        del keys["tlsCertificatePath"]
        for part in ("Key", "Trust"):
            keys |= {f"tls{part}StoreType": kind, f"tls{part}Store": str(store)}
            keys[f"tls{part}StorePasswordPath"] = password
    keys["tlsClientAuthentication"] = "true"
    here = contexts(keys).context
    other = contexts(pem | {"tlsClientAuthentication": "true"}, server_side=False).context
    client, _ = handshake(here, other)
    assert client.getpeercert(True) == own.der
    client, server = handshake(contexts(pem).context, contexts(keys, server_side=False).context)
    assert client.getpeercert(True) == own.der
    assert server.getpeercert(True) is None  # it was not asked for


def test_a_java_store_is_refused_with_the_command_that_converts_it(tmp_path: Path, password: str) -> None:
    (tmp_path / "old.jks").write_bytes(bytes.fromhex("feedfeed00000002"))
    with pytest.raises(InvalidArgumentError) as caught:
        contexts({"tlsKeyStore": str(tmp_path / "old.jks"), "tlsKeyStorePasswordPath": password})
    text = str(caught.value)
    assert text.startswith(f"tlsKeyStore: {tmp_path}/old.jks is a store in Java's own form")
    assert f"keytool -importkeystore -srckeystore {tmp_path}/old.jks -destkeystore" in text
    assert f"set tlsKeyStore={tmp_path}/old.jks.p12 and tlsKeyStoreType=PKCS12" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tlsKeyStore": ""}, "tlsKeyStore is missing: set it"),
        ({"tlsKeyStore": "/no/such"}, "tlsKeyStore: cannot read /no/such: No such file"),
        ({"tlsCertificatePath": ""}, "tlsCertificatePath is missing"),
        ({"tlsCertificatePath": "/no/such"}, "tlsCertificatePath: cannot read /no/such"),
        ({"tlsTrustStore": "", "tlsClientAuthentication": "true"}, "tlsTrustStore is missing: set it"),
        ({"tlsTrustStore": "key.pem", "tlsClientAuthentication": "true"}, "holds no certificates in PEM form"),
        ({"tlsKeyStore": "ca.pem"}, "are not a key and certificates in PEM form"),
        ({"tlsKeyStore": "other.pem"}, "is not the key of the certificate"),
        ({"tlsKeyStore": "locked.pem"}, "has a password; set tlsKeyStorePasswordPath"),
        ({"tlsKeyStore": "locked.pem", "tlsKeyStorePasswordPath": "key.pem"}, "cannot be read with the password in"),
        ({"tlsKeyStore": "locked.pem", "tlsKeyStorePasswordPath": "/no"}, "tlsKeyStorePasswordPath: cannot read /no"),
        ({"tlsKeyStoreType": "PKCS12"}, "it is not PKCS#12, or no password is given"),
        ({"tlsKeyStoreType": "PKCS12", "tlsKeyStore": "p12"}, "it is not PKCS#12, or no password is given"),
        (
            {"tlsKeyStoreType": "PKCS12", "tlsKeyStore": "p12", "tlsKeyStorePasswordPath": "key.pem"},
            "it is not PKCS#12, or the password in",
        ),
        ({"tlsEnabledCipherSuites": "TLS_AES_128_GCM_SHA256"}, "tlsEnabledCipherSuites names some suites of TLSv1.3"),
        (
            {
                "tlsEnabledProtocols": "TLSv1.3",
                "tlsEnabledCipherSuites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            },
            "names no suite of the versions in tlsEnabledProtocols",
        ),
    ],
)
def test_wrong_files_are_errors_that_name_key_and_file(
    tmp_path: Path, pem: dict[str, str], change: dict[str, str], says: str
) -> None:
    own = identity("bookie")
    (tmp_path / "other.pem").write_bytes(identity("other").key_pem())
    (tmp_path / "locked.pem").write_bytes(own.key_pem(PASSWORD))
    (tmp_path / "p12").write_bytes(own.pkcs12(PASSWORD))
    made = {name: str(tmp_path / value) if (tmp_path / value).is_file() else value for name, value in change.items()}
    with pytest.raises(InvalidArgumentError) as caught:
        contexts(pem | made)
    text = str(caught.value)
    assert says in text
    assert "PRIVATE" not in text
    assert PASSWORD not in text
    assert caught.value.__cause__ is None or "PRIVATE" not in str(caught.value.__cause__)


def test_names_of_suites_are_those_of_java_and_each_is_one_of_openssls() -> None:
    known = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    known.set_ciphers("ALL:@SECLEVEL=0")
    names = {cipher["name"] for cipher in known.get_ciphers()}
    for suite in SUITES:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if suite.startswith("TLS_") and "_WITH_" not in suite:
            assert suite in names
            continue
        assert restrict(context, (), (suite,)) is None
        assert context.maximum_version == ssl.TLSVersion.TLSv1_2
        (chosen,) = [cipher for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
        assert chosen["name"] in names
        # OpenSSL's description has the parts of Java's name.
        exchange = "ECDHE" if "ECDHE" in suite else "DHE"
        assert chosen["name"].startswith(exchange)


def test_every_protocol_and_suite_of_the_lists_is_used(pem: dict[str, str]) -> None:
    """Apache's bookie uses only the first of each."""
    suites = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    server = contexts(pem | {"tlsEnabledCipherSuites": suites, "tlsEnabledProtocols": "TLSv1.3,TLSv1.2"})
    used = set()
    for name in ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"):
        client = contexts(pem, server_side=False).context
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        client.set_ciphers(name)
        used.add(handshake(server.context, client)[0].cipher()[0])  # type: ignore[index]
    assert used == {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"}
    both = contexts(pem | {"tlsEnabledProtocols": "TLSv1.2,TLSv1.3"}).context
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client = contexts(pem, server_side=False).context
        client.minimum_version = client.maximum_version = version
        handshake(both, client)
    only_new = contexts(pem | {"tlsEnabledProtocols": "TLSv1.3"}).context
    client = contexts(pem | {"tlsEnabledProtocols": "TLSv1.2"}, server_side=False).context
    with pytest.raises(ssl.SSLError) as caught:
        handshake(only_new, client)
    assert reason_of(caught.value) == "the two sides have no version of TLS in common"


def test_hosts_are_verified_unless_it_is_switched_off(pem: dict[str, str], tmp_path: Path) -> None:
    server = contexts(pem).context
    verifies = contexts(pem, server_side=False).context
    handshake(server, verifies, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(server, verifies, "elsewhere")
    assert reason_of(caught.value).startswith("the certificate of the peer is refused: Hostname mismatch")
    off = contexts(pem | {"tlsHostnameVerificationEnabled": "false"}, server_side=False).context
    handshake(server, off, "elsewhere")
    others = contexts(write_pem(tmp_path / "others", None, "others"), server_side=False).context
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, others)


def test_no_side_renegotiates(pem: dict[str, str]) -> None:
    """A peer could ask for it again and again. OpenSSL 3 refuses a client's wish by default, 1.1.1 does not."""
    for server_side in (True, False):
        assert contexts(pem, server_side=server_side).context.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize("who", ["client", "bookie"])
def test_certificates_of_a_local_cluster_satisfy_strict_verifiers(tmp_path: Path, who: str) -> None:
    """Those of Python from 3.13 on are strict by default."""
    prepare(tmp_path)
    of_bookie = {key: value for key, value in bookie_keys(tmp_path).items() if key in _FIELDS}
    of_caller = of_bookie | {
        "tlsKeyStore": str(tmp_path / "tls" / f"{who}.key"),
        "tlsCertificatePath": str(tmp_path / "tls" / f"{who}.pem"),
    }
    server, client = contexts(of_bookie).context, contexts(of_caller, server_side=False).context
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    called, caller = handshake(client=client, server=server, host="127.0.0.1")
    assert called.getpeercert() is not None
    assert caller.getpeercert() is not None
