"""DIGEST-MD5 against what Java's two sides said to each other, and what each side refuses."""

from __future__ import annotations

import pytest

from bk_spark.protocol.auth.digest_md5 import MAX_BYTES, DigestMd5Bookie, DigestMd5Client, _Digest, directives
from bk_spark.protocol.errors import BookKeeperError, UnauthorizedError, WireFormatError

#: User, password, nonce, cnonce, response and rspauth of JDK 17. RFC 2831 hashes texts in ISO 8859-1 where it can.
_JAVA = [
    (
        "bookkeeper", "golden", "YJBSdwDjHtFrhLpFAg0D0AgZbDnBtKo6+VuV69i2",
        "oLJF3rxKrKfJiZJiA6h0Sf3LJ1itVp91vwl/S4/7",
        "5162fb5c71f65c199af145e72c22eb6f", "e802ce90d54e0abce690c88c23660fd7",
    ),
    (
        "jürgen", 'päss w"o\\rd', "ut9B//QU4V5KBZWS24suDofwY5PU+wqvoQb08lxK",
        "FeMN4QGo+AIEg5/jdMRHhiT8eRHk1ICNra4rmWs4",
        "0f88fd08026eb336e7922bbf1482accc", "b556ef688a1bc8077cc499b7961a04de",
    ),
    (
        "αlpha", "s€ret", "VfSUbbTqlE7ybJBk7j+yWKCOzyHZn594/yajW0GK",
        "GDHDyk9h53hQSLojwfpMsyvdoNxFAWuPNpLfz4pz",
        "3a185fc560ca57022deaeee3f86c6e3b", "b063afe171de078cfda76cb95e8c2e22",
    ),
    (
        "üα", "xä", "Ig0eZddX4pRpbIOYdQDgNoivqkBel8434hD8j5Y7",
        "LmGoWac/Byccjvp7zgN2QG6Qfo9hTMxKJuSCL3Kl",
        "b91045ffa8d08365832a47684fc2f9a1", "e667faf2b699beef1f73f30fda7efe71",
    ),
]  # fmt: skip
_USERS = {"spark": "golden", "other": "silver"}


def _response(user: str, nonce: str, cnonce: str, response: str) -> bytes:
    return (
        f'charset=utf-8,username="{user}",realm="bookkeeper",nonce="{nonce}",nc=00000001,cnonce="{cnonce}",'
        f'digest-uri="bookkeeper/bookkeeper",maxbuf=65536,response={response},qop=auth,authzid="{user}"'
    ).encode()


@pytest.mark.parametrize(("user", "password", "nonce", "cnonce", "response", "proof"), _JAVA)
def test_both_sides_are_javas_byte_for_byte(
    user: str, password: str, nonce: str, cnonce: str, response: str, proof: str
) -> None:
    challenge = f'realm="bookkeeper",nonce="{nonce}",charset=utf-8,algorithm=md5-sess'.encode()
    client = DigestMd5Client(user, password, cnonce)
    assert client.respond(challenge) == _response(user, nonce, cnonce, response)
    client.check(f"rspauth={proof}".encode())
    bookie = DigestMd5Bookie({user: password, "another": "x"}, nonce, "no password")
    assert bookie.challenge() == challenge
    assert bookie.check(_response(user, nonce, cnonce, response)) == (user, f"rspauth={proof}".encode())


def _answer(user: str = "spark", password: str = "golden", nonce: str = "n1", **changed: str | None) -> bytes:
    """A response, with some directives changed or left out."""
    challenge = DigestMd5Bookie({}, nonce, "no password").challenge()
    given: dict[str, str | None] = dict(directives(DigestMd5Client(user, password, "c1").respond(challenge)))
    given |= {name.replace("_", "-"): value for name, value in changed.items()}
    return ",".join(f'{name}="{value}"' for name, value in given.items() if value is not None).encode()


def test_what_may_be_left_out() -> None:
    assert DigestMd5Bookie(_USERS, "n1", "no password").check(_answer())[0] == "spark"
    assert DigestMd5Bookie(_USERS, "n1", "no password").check(_answer(qop=None))[0] == "spark"
    # Without authzid the digest is another one.
    with pytest.raises(UnauthorizedError):
        DigestMd5Bookie(_USERS, "n1", "no password").check(_answer(authzid=None))


@pytest.mark.parametrize(
    "answer",
    [
        _answer(password="silver"),
        _answer(user="nobody"),
        _answer(user="nobody", password="no password"),
        _answer(username="other"),
        _answer(username="other", authzid="other"),
        _answer(authzid="other"),
        _answer("spark", "golden", "n2"),
        _answer(nc="00000002"),
        _answer(realm="elsewhere"),
        _answer(realm=None),
        _answer(digest_uri="zookeeper/zk-sasl-md5"),
        _answer(qop="auth-conf"),
        _answer(charset=None),
        _answer(cnonce=None),
        _answer(response=None),
        _answer(response="0" * 32),
        _answer(response="x" * 32),
        _answer(response="é" * 32),
        _answer(username=None),
        b"",
        b",",
        b"username",
        b'username="spark',
        b'username="spark",username="spark"',
        b"\xff\xfe",
        b"a=b," * 2000,
    ],
)
def test_a_wrong_answer_is_refused(answer: bytes) -> None:
    bookie = DigestMd5Bookie(_USERS, "n1", "no password")
    with pytest.raises((UnauthorizedError, WireFormatError)) as refused:
        bookie.check(answer)
    assert "golden" not in str(refused.value)
    with pytest.raises(UnauthorizedError, match="second answer"):  # one guess for each challenge
        bookie.check(_answer())


def test_nobody_acts_for_another() -> None:
    digest = _Digest("spark", "bookkeeper", "golden", "n1", "c1", "other").of_client
    with pytest.raises(UnauthorizedError, match="wrong authzid"):
        DigestMd5Bookie(_USERS, "n1", "no password").check(_answer(authzid="other", response=digest))
    digest = _Digest("spark", "bookkeeper", "golden", "n1", "c1", None).of_client
    assert DigestMd5Bookie(_USERS, "n1", "no password").check(_answer(authzid=None, response=digest))[0] == "spark"


def test_a_recorded_answer_is_of_no_use() -> None:
    recorded = _answer()
    assert DigestMd5Bookie(_USERS, "n1", "no password").check(recorded)
    with pytest.raises(UnauthorizedError, match="wrong nonce"):
        DigestMd5Bookie(_USERS, "n2", "no password").check(recorded)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b'realm="bookkeeper"',
        b'realm="bookkeeper",nonce="n1",charset=utf-8',
        b'realm="bookkeeper",nonce="n1",charset=utf-8,algorithm=md5',
        b'realm="bookkeeper",nonce="n1",qop="auth-conf",charset=utf-8,algorithm=md5-sess',
        b"x" * (MAX_BYTES + 1),
    ],
)
def test_a_client_refuses_other_challenges(challenge: bytes) -> None:
    with pytest.raises(WireFormatError):
        DigestMd5Client("spark", "golden", "c1").respond(challenge)


@pytest.mark.parametrize("proof", [b"rspauth=" + b"0" * 32, b"rspauth=", b"rspauth=\xc3\xa9", b"", b"ok=yes"])
def test_a_client_refuses_a_bookie_that_does_not_know_the_password(proof: bytes) -> None:
    client = DigestMd5Client("spark", "golden", "c1")
    with pytest.raises(BookKeeperError):  # not even before there was a challenge
        client.check(proof)
    client.respond(DigestMd5Bookie({}, "n1", "no password").challenge())
    with pytest.raises((UnauthorizedError, WireFormatError)) as refused:
        client.check(proof)
    assert "golden" not in str(refused.value)


def test_the_proof_of_one_login_is_none_of_another() -> None:
    bookie = DigestMd5Bookie(_USERS, "n1", "no password")
    _, proof = bookie.check(DigestMd5Client("spark", "golden", "c1").respond(bookie.challenge()))
    other = DigestMd5Client("spark", "golden", "c2")
    other.respond(bookie.challenge())
    with pytest.raises(UnauthorizedError):
        other.check(proof)


def test_directives_as_rfc_2831_writes_them() -> None:
    assert directives(b' A = b ,c="x,\\"y\\\\=",d=1,') == {"a": "b", "c": 'x,"y\\=', "d": "1"}
