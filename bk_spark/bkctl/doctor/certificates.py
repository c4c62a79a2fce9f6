"""The check of ``bkctl doctor`` of the certificates in ``--client-conf``."""

from __future__ import annotations

import datetime
from typing import Final

from bk_spark.bkctl.doctor.findings import Finding, ok, problem, warning
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.protocol.errors import InvalidArgumentError

_CHECK: Final = "certificates"
_SOON: Final = datetime.timedelta(days=14)


def certificates(config: ClientConfig) -> Finding:
    """Check that the files of TLS can be used, and that no certificate in them has expired or soon will.

    One valid certificate among the trusted authorities is enough, because their file may keep old ones.
    """
    from cryptography.x509 import InvalidVersion, load_pem_x509_certificates

    try:
        pem = ClientTls(config).pem()
        chain, trusted = (load_pem_x509_certificates(text) if text else [] for text in (pem.chain, pem.trusted))
    except InvalidArgumentError as error:
        seen, _, remedy = error.message.partition("; ")
        return problem(_CHECK, seen, remedy or "correct the file of --client-conf")
    except (ValueError, InvalidVersion) as error:
        return problem(_CHECK, f"a certificate cannot be read ({error})", "create the files of --client-conf again")
    now = datetime.datetime.now(datetime.UTC)
    ends = [("this client's", min(each.not_valid_after_utc for each in chain))] if chain else []
    ends += [("the trusted authorities'", max(each.not_valid_after_utc for each in trusted))] if trusted else []
    told = ", ".join(f"{whose} until {end:%Y-%m-%d}" for whose, end in ends)
    remedy = "renew what ends first; a file that is replaced is loaded without a restart"
    first = min(end for _, end in ends)
    if first <= now:
        return problem(_CHECK, f"expired: {told}", remedy)
    if first <= now + _SOON:
        return warning(_CHECK, f"about to expire: {told}", remedy)
    return ok(_CHECK, told)
