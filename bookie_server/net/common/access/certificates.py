"""The names in a client's certificate.

The role is where Apache's ``BookieAuthZFactory`` looks for it (compatibility.md §1.9): in the first OU of the subject,
parts of which are separated by ``;``. The part ``0:`` has roles, separated by commas, and only the first one counts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

_PART: Final = re.compile(r"([0-9]+):(.*)", re.DOTALL)
_ROLES: Final = "0"
#: Certificates whose subjects are kept: those of the connections that begin at about the same time.
_KEPT: Final = 64


def role_in(certificate: bytes) -> str | None:
    """Return the role in a certificate (DER form). None: it has none."""
    subject = _subject(certificate)
    units = [] if subject is None else subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    if not units or not isinstance(units[0].value, str):
        return None
    matches = map(_PART.fullmatch, units[0].value.split(";"))
    parts = {match[1]: match[2] for match in matches if match is not None}
    return parts.get(_ROLES, "").split(",")[0].strip() or None


def names_in(certificate: bytes) -> tuple[str, ...]:
    """Return the names of the peer that shows a certificate: its subject (RFC 4514), and its role if it has one."""
    subject, role = _subject(certificate), role_in(certificate)
    names = () if subject is None else (f"subject:{subject.rfc4514_string()}",)
    return names if role is None else (*names, f"role:{role}")


# A connection asks several times, for its names and for its role, and a client's next one shows the same certificate.
@lru_cache(maxsize=_KEPT)
def _subject(certificate: bytes) -> x509.Name | None:
    try:
        return x509.load_der_x509_certificate(certificate).subject
    except (ValueError, x509.InvalidVersion):  # OpenSSL takes some that this reader does not
        return None
