"""Tell clients the rack of this pod's bookie: the zone of its node, in the znode ``rackMappingZnode``.

The znode has Pulsar's format, which Apache's clients and ours read. Entries of other bookies stay as they are. Exit
status 1: the zone or the znode could not be had; the kubelet tries again.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.rack_names import parse_rack_mapping
from bk_spark.protocol.errors import BookKeeperError, MetadataConflictError, OutcomeUnknownError
from bookie_server.config.load import load_config

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LABEL = "topology.kubernetes.io/zone"
GROUP = "default"
ATTEMPTS = 100


def zone_of_node(api: str, account: Path, node: str) -> str | None:
    """Ask the Kubernetes API for the node's zone. None: it has no such label. Raises OSError."""
    request = urllib.request.Request(
        f"{api}/api/v1/nodes/{urllib.parse.quote(node)}",
        headers={"Authorization": f"Bearer {(account / 'token').read_text('ascii').strip()}"},
    )
    trusted = ssl.create_default_context(cafile=str(account / "ca.crt")) if api.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
            labels: dict[str, str] = json.load(answer)["metadata"].get("labels", {})
    except urllib.error.HTTPError as refused:
        refused.close()
        raise
    return labels.get(LABEL)


def set_rack(zk: ZooKeeper, path: str, bookie_id: str, host: str, zone: str | None) -> None:
    """Write the bookie's entry, or remove it without a zone. Raises BookKeeperError, also if the znode is malformed."""
    for _ in range(ATTEMPTS):
        found = zk.get_latest(path)
        if found is not None:
            parse_rack_mapping(found.data)  # nothing is written over what others cannot read
        groups = json.loads(found.data) if found is not None and found.data.strip() else {}
        group = groups.setdefault(GROUP, {})
        entry = None if zone is None else {"rack": f"/{zone}", "hostname": host}
        if group.get(bookie_id) == entry:
            return
        if entry is None:
            del group[bookie_id]
        else:
            group[bookie_id] = entry
        data = json.dumps(groups).encode()
        try:
            if found is None:
                zk.create(path, data, make_parents=True)
            else:
                zk.set(path, data, found.version)
        except (MetadataConflictError, OutcomeUnknownError):
            continue  # another bookie was faster, or this one's change is there: look again
        return
    raise MetadataConflictError(f"znode {path} changed {ATTEMPTS} times meanwhile")


def main(arguments: list[str], *, api: str = "https://kubernetes.default.svc", account: Path = ACCOUNT) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf", required=True, metavar="FILE", help="configuration of the bookie")
    try:
        config, _ = load_config(parser.parse_args(arguments).conf)
        zone = zone_of_node(api, account, os.environ["NODE_NAME"])
        zk = ZooKeeper(config.metadata_service_uri.servers)
        try:
            zk.start()
            set_rack(zk, config.rack_mapping_znode, config.bookie_id, config.advertised_host, zone)
        finally:
            zk.close()
    except (BookKeeperError, OSError) as error:
        print(f"racks: {error}", file=sys.stderr)
        return 1
    print(f"bookie {config.bookie_id} is in rack /{zone}" if zone else f"the node has no label {LABEL}: rack unknown")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
