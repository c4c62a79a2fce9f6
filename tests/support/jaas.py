"""Files of JAAS for tests. Nothing here is secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
SASL_BOOKIE = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
SASL_CLIENT = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
CERTIFICATE_ROLES = "org.apache.bookkeeper.tls.BookieAuthZFactory"
#: Users of bookies, and their passwords.
USERS = {"bookkeeper": "golden", "visitor": "silver"}


def write_jaas(path: Path, user: str = "bookkeeper", password: str = "golden", users: Mapping[str, str] = USERS) -> str:
    """Write a file with ``users`` for bookies, and ``user`` for clients and self-healing. Return its path."""
    known = " ".join(f'user_{name}="{text}"' for name, text in users.items())
    own = f'username="{user}" password="{password}"'
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = {"Bookie": known, "BookKeeper": own, "Auditor": own}
    path.write_text("".join(f"{name} {{ {MODULE} required {text}; }};\n" for name, text in sections.items()))
    path.chmod(0o600)
    return str(path)


def client_keys(jaas: str) -> dict[str, str]:
    """Keys of a client that logs in by SASL."""
    return {"clientAuthProviderFactoryClass": SASL_CLIENT, "java.security.auth.login.config": jaas}


def bookie_keys(jaas: str) -> dict[str, str]:
    """Keys of a bookie whose clients, and its own, log in by SASL."""
    return {"bookieAuthProviderFactoryClass": SASL_BOOKIE, **client_keys(jaas)}
