"""Measures what TLS costs: the same writes and reads over TLS and in clear, in turn, on one bookie.

Starts ZooKeeper and one bookie that offers both. A client writes a ledger and reads it, over v2. Reports megabytes of
payload per second of the median round, CPU seconds of bookie and client per gigabyte, and for both the ratio of TLS to
clear.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from benchmarks.write_and_read import Way, compare
from bk_spark import ClientConfig
from bookie_server.local import LOOPBACK, LocalCluster

NAME = "tls"
_CERTIFICATES = f"""
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=ca" -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=bookie" -keyout bookie.key -out bookie.csr
printf 'subjectAltName=IP:{LOOPBACK}\\n' > bookie.ext
openssl x509 -req -in bookie.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile bookie.ext -out bookie.pem
"""


def main(arguments_given: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks tls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200, help="payload of one round and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 64 * 1024, 1024 * 1024], help="payload bytes")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(arguments_given)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        subprocess.run(["sh", "-ec", _CERTIFICATES], cwd=directory, check=True, capture_output=True)
        common = {
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": str(directory / "ca.pem"),
        }
        settings = common | {
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": str(directory / "bookie.key"),
            "tlsCertificatePath": str(directory / "bookie.pem"),
        }
        with LocalCluster(directory / "cluster", bookies=1, bookie_settings=settings) as cluster:
            pid = cluster.bookies[0].pid
            assert pid is not None
            configs = {"clear": ClientConfig(), "tls": ClientConfig.from_properties(common)}
            ways = {label: Way(cluster.metadata_service_uri, pid, config) for label, config in configs.items()}
            for size in arguments.sizes:
                compare(NAME, ways, size, arguments.megabytes, arguments.rounds)
