"""How a client logs in at bookies, under Apache's keys where they exist. Source: compatibility.md §1.9."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.auth.classes import CLASS_FORM, is_class_name
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.settings.kinds import OPTIONAL_TEXT, TEXT, Kind, WrongValueError
from bk_spark.settings.setting import key

#: Apache's class for logins by SASL.
SASL_CLIENT: Final = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
#: The setting that names the file with users and passwords. To Java it is a property of the process.
JAAS_KEY: Final = "java.security.auth.login.config"


def class_kind(*known: str) -> Kind:
    """One of Apache's classes, a class of the user's, or nothing."""

    def parsed(text: str) -> str:
        name = "" if text.strip() == "null" else text.strip()
        if name and name not in known and not is_class_name(name):
            raise WrongValueError(f"must be {' or '.join(known)}, {CLASS_FORM}, or empty")
        return name

    allowed = " or ".join(f"`{name}`" for name in known)
    return Kind(f"{allowed}, {CLASS_FORM}, or empty", parsed, lambda value: isinstance(value, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings(TlsSettings):
    """Logins at bookies, beside TLS. Passwords are never settings: they are in files."""

    client_auth: str = key(
        "clientAuthProviderFactoryClass",
        "",
        class_kind(SASL_CLIENT),
        "How the client logs in at bookies: by SASL, or as a class of yours does it. Empty: not at all.",
    )
    auth_file: str = key(
        "authProviderFile",
        "",
        OPTIONAL_TEXT,
        "File that is passed to your own class, such as one with a token.",
        apache=False,
    )
    jaas_file: str = key(
        JAAS_KEY,
        "",
        OPTIONAL_TEXT,
        "SASL: file with users and passwords in the syntax of JAAS. To Apache's it is a property of the JVM.",
        apache=False,
    )
    sasl_client_section: str = key(
        "saslJaasClientSectionName", "BookKeeper", TEXT, "SASL: the section of that file with the client's user."
    )
