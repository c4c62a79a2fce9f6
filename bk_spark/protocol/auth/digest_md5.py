"""SASL's DIGEST-MD5 (RFC 2831) as Apache's bookies and clients speak it. Source: compatibility.md §1.9.

=========  =====================================================================================================
sender     message
=========  =====================================================================================================
client     nothing
bookie     ``realm="bookkeeper",nonce="…",charset=utf-8,algorithm=md5-sess``
client     ``charset=utf-8,username="…",realm="bookkeeper",nonce="…",nc=00000001,cnonce="…",
           digest-uri="bookkeeper/bookkeeper",maxbuf=65536,response=32 hex digits,qop=auth,authzid="…"``
bookie     ``rspauth=32 hex digits``, its own proof that it knows the password
=========  =====================================================================================================

The password does not cross the network. But whoever records a login can try passwords against it at leisure. So use TLS
for logins, and passwords that are long and random. The login protects nothing that follows it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bk_spark.protocol.errors import UnauthorizedError, WireFormatError

#: The service and the host that Apache's use for every bookie, and the realm of its users.
_REALM: Final = "bookkeeper"
_DIGEST_URI: Final = "bookkeeper/bookkeeper"
#: A nonce is good for one response.
_COUNT: Final = "00000001"
_QOP: Final = "auth"
#: RFC 2831, sections 2.1.1 and 2.1.2: a longer challenge or response is refused.
MAX_BYTES: Final = 4096
#: Characters of a name that an error shows.
_SHOWN: Final = 64
#: A name, "=", a value with or without quotes, and a comma or the end.
_DIRECTIVE: Final = re.compile(
    r'[ \t]*([A-Za-z-]{1,32})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^"\\,=\x00-\x20\x7f]+))[ \t]*(?:,|\Z)', re.DOTALL
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_RESPONSE: Final = re.compile(r"[0-9a-f]{32}")


def directives(message: bytes) -> dict[str, str]:
    """Return the directives of a message, by their names in lower case. Raises WireFormatError."""
    if len(message) > MAX_BYTES:
        raise WireFormatError(f"a DIGEST-MD5 message of more than {MAX_BYTES} bytes")
    try:
        text = message.decode("utf-8")
    except UnicodeDecodeError:
        raise WireFormatError("a DIGEST-MD5 message that is not UTF-8") from None
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _DIRECTIVE.match(text, at)
        if match is None:
            raise WireFormatError("a DIGEST-MD5 message that is not a list of directives")
        name, quoted, bare = match[1].lower(), match[2], match[3]
        if name in found:
            raise WireFormatError(f"a DIGEST-MD5 message with two directives {name}")
        found[name] = bare if quoted is None else _ESCAPED.sub(r"\1", quoted)
        at = match.end()
    return found


class DigestMd5Client:
    """The client's side of one login.

    Parameters
    ----------
    user, password
        The name and the password to log in with.
    cnonce
        Random text, never used before.
    """

    def __init__(self, user: str, password: str, cnonce: str) -> None:
        self._user, self._password, self._cnonce = user, password, cnonce
        self._proof = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the response to the bookie's challenge. Raises WireFormatError if that is not DIGEST-MD5's."""
        asked = directives(challenge)
        nonce, realm = asked.get("nonce", ""), asked.get("realm", "")
        if not nonce or asked.get("algorithm") != "md5-sess" or _QOP not in asked.get("qop", _QOP).split(","):
            raise WireFormatError("the bookie's challenge is not DIGEST-MD5's")
        digest = _Digest(self._user, realm, self._password, nonce, self._cnonce, self._user)
        self._proof = digest.of_bookie
        given = {
            "charset": "utf-8",
            "username": _quoted(self._user),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "nc": _COUNT,
            "cnonce": _quoted(self._cnonce),
            "digest-uri": _quoted(_DIGEST_URI),
            "maxbuf": "65536",
            "response": digest.of_client,
            "qop": _QOP,
            "authzid": _quoted(self._user),
        }
        return ",".join(f"{name}={value}" for name, value in given.items()).encode()

    def check(self, answer: bytes) -> None:
        """Check the bookie's proof. Raises UnauthorizedError if it does not know the password, WireFormatError."""
        proof = directives(answer).get("rspauth", "")
        if not self._proof or not hmac.compare_digest(proof.encode(), self._proof.encode()):
            raise UnauthorizedError("the peer does not prove that it knows the password, so it is not our bookie")


class DigestMd5Bookie:
    """The bookie's side of one login.

    Parameters
    ----------
    passwords
        Those of the users that may log in.
    nonce
        Random text, never used before: a response that somebody recorded answers another one.
    no_password
        Random text that nobody knows: an unknown user is checked with it.
    """

    def __init__(self, passwords: Mapping[str, str], nonce: str, no_password: str) -> None:
        self._passwords = passwords
        self._nonce = nonce
        self._no_password = no_password
        self._is_open = True

    def challenge(self) -> bytes:
        """Return the challenge."""
        return f'realm="{_REALM}",nonce="{self._nonce}",charset=utf-8,algorithm=md5-sess'.encode()

    def check(self, response: bytes) -> tuple[str, bytes]:
        """Return the user who answered the challenge, and the bookie's proof. Only the first answer counts.

        Raises UnauthorizedError for a wrong one, WireFormatError. The reason is for the log, not for the peer.
        """
        if not self._is_open:
            raise UnauthorizedError("a second answer to one challenge")
        self._is_open = False
        given = directives(response)
        user, claimed = given.get("username", ""), given.get("response", "")
        for name, wanted in (
            ("nonce", self._nonce),
            ("nc", _COUNT),
            ("realm", _REALM),
            ("digest-uri", _DIGEST_URI),
            ("qop", _QOP),
            ("charset", "utf-8"),
            ("authzid", user),
        ):
            if given.get(name, wanted if name in ("qop", "authzid") else "") != wanted:
                raise UnauthorizedError(f"its answer has a wrong {name}")
        if not given.get("cnonce") or not _RESPONSE.fullmatch(claimed):
            raise UnauthorizedError("its answer lacks a cnonce or a response")
        # An unknown user takes as long as a wrong password.
        password = self._passwords.get(user, self._no_password)
        digest = _Digest(user, _REALM, password, self._nonce, given["cnonce"], given.get("authzid"))
        if not hmac.compare_digest(claimed, digest.of_client) or user not in self._passwords:
            raise UnauthorizedError(f"wrong password of user {user[:_SHOWN]!r}, or no such user")
        return user, f"rspauth={digest.of_bookie}".encode()


@dataclass(frozen=True, slots=True)
class _Digest:
    """RFC 2831, section 2.1.2.1, for qop=auth."""

    user: str
    realm: str
    password: str = field(repr=False)
    nonce: str
    cnonce: str
    authzid: str | None

    @property
    def of_client(self) -> str:
        return self._value("AUTHENTICATE:")

    @property
    def of_bookie(self) -> str:
        return self._value(":")

    def _value(self, method: str) -> str:
        secret = _md5(b":".join(map(_octets, (self.user, self.realm, self.password))))
        session = [self.nonce, self.cnonce, *([] if self.authzid is None else [self.authzid])]
        a1 = _md5(secret + b":" + ":".join(session).encode()).hex()
        a2 = _md5((method + _DIGEST_URI).encode()).hex()
        return _md5(":".join((a1, self.nonce, _COUNT, self.cnonce, _QOP, a2)).encode()).hex()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _octets(text: str) -> bytes:
    """As RFC 2831 hashes texts: in ISO 8859-1 where that has all their characters."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8")


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
