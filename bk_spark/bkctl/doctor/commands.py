"""``bkctl doctor``: finds what would keep Spark from reading and writing logs on this machine, and says what to do."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from bk_spark.bkctl.command_line.client_settings import client_config
from bk_spark.bkctl.command_line.common import ExitStatus, print_json
from bk_spark.bkctl.doctor import cluster as doctor_cluster, machine as doctor_machine
from bk_spark.bkctl.doctor.certificates import certificates
from bk_spark.bkctl.doctor.findings import Finding, Status, warning


def add_commands(groups: Any) -> None:
    """Add ``doctor``, which needs no cluster: without ``--metadata-service-uri`` it checks less."""
    doctor = groups.add_parser(
        "doctor", help="find what keeps Spark from reading and writing on this machine, and say what to do"
    )
    doctor.add_argument(
        "--python", metavar="PROGRAM", help="Python of Spark's workers; default: $PYSPARK_PYTHON, or python3"
    )
    doctor.set_defaults(run=_doctor, without_cluster=True, without_uri=True)


def _doctor(options: argparse.Namespace) -> ExitStatus:
    findings = []
    for finding in _findings(options):
        findings.append(finding)
        if not options.json:
            # Print each at once: some checks take seconds.
            print(finding.line(), flush=True)
    if options.json:
        print_json(
            [
                {"check": one.check, "status": one.status.value, "seen": one.seen, "remedy": one.remedy}
                for one in findings
            ]
        )
    healthy = all(one.status is not Status.PROBLEM for one in findings)
    return ExitStatus.OK if healthy else ExitStatus.PROBLEMS_FOUND


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    yield doctor_machine.java(os.environ)
    yield doctor_machine.pyspark(os.environ)
    yield doctor_machine.workers_python(options.python, os.environ)
    yield doctor_machine.disk_space(os.environ)
    yield doctor_machine.open_files()
    if options.metadata_service_uri is None:
        yield warning("zookeeper", "not looked at", "say where the cluster is with --metadata-service-uri")
        return
    config = client_config(options)
    if config.tls_enabled:
        finding = certificates(config)
        yield finding
        if finding.status is Status.PROBLEM:
            # Nothing can be connected.
            return
    with doctor_cluster.connected(options.metadata_service_uri, config) as (client, finding):
        yield finding
        if client is not None:
            yield doctor_cluster.clock(client, options.log_root)
            yield from doctor_cluster.bookies(client)
