"""The keys that say who may use the bookie (compatibility.md §1.9)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.auth.settings import class_kind
from bk_spark.settings.kinds import OPTIONAL_TEXT, TEXT, Kind, WrongValueError
from bk_spark.settings.setting import key
from bookie_server.config.administration import AdministrationConfig

#: Apache's classes for logins by SASL, and for roles in certificates.
SASL_BOOKIE: Final = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
CERTIFICATE_ROLES: Final = "org.apache.bookkeeper.tls.BookieAuthZFactory"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pattern(text: str) -> str:
    try:
        re.compile(text.strip())
    except re.error as error:
        raise WrongValueError(f"is not a regular expression: {error}") from None
    return text.strip()


_NAMES: Final = Kind("names, separated by commas", _names)
_PATTERN: Final = Kind("a regular expression", _pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig(AdministrationConfig):
    """Settings of the front ends: who may use them."""

    bookie_auth: str = key(
        "bookieAuthProviderFactoryClass",
        "",
        class_kind(CERTIFICATE_ROLES, SASL_BOOKIE),
        "How clients prove who they are: by a role in their certificate, by a login with SASL, or as a class of yours "
        "says. Empty: not at all.",
    )
    authorized_roles: tuple[str, ...] = key(
        "authorizedRoles",
        "",
        _NAMES,
        "Certificates: the roles that may use the bookie.",
    )
    permitted_startup_users: tuple[str, ...] = key(
        "permittedStartupUsers",
        "",
        _NAMES,
        "The users of this host that may start the bookie. Empty: everybody.",
    )
    sasl_bookie_section: str = key(
        "saslJaasBookieSectionName",
        "Bookie",
        TEXT,
        "SASL: the section of `java.security.auth.login.config` with the users that may log in.",
    )
    sasl_allowed_ids: str = key(
        "saslJaasClientAllowedIds",
        ".*bookkeeper.*",
        _PATTERN,
        "SASL: the users who may use the bookie. It must match the whole name.",
    )
    authorization_file: str = key(
        "authorizationFile",
        "",
        OPTIONAL_TEXT,
        "File that says who may read, write, fence and administer. Empty: whoever may use the bookie may do all. Not a "
        "key of Apache's.",
    )
