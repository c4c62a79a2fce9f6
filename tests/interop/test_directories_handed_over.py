"""Either bookie goes on with directories that the other left."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import ApacheBookie, Bookies
from tests.interop.java_client import JavaClient
from tests.interop.shelf import DIRECTORIES, PASSWORD, Shelf, bookie_settings, new_cluster

pytestmark = pytest.mark.timeout(600)

#: Bookies one after the other, each with whether it is killed at its end. Apache's is not killed after ours was: what
#: it replayed of an explicit LAC without entries it need not have written when it moves its mark.
_COURSES: Final[dict[str, list[tuple[type[LocalBookie], bool]]]] = {
    "stopped": [(LocalBookie, False), (ApacheBookie, False), (LocalBookie, False)],
    "ours-killed": [(LocalBookie, True), (ApacheBookie, False), (LocalBookie, False)],
    "apaches-killed": [(ApacheBookie, True), (LocalBookie, False)],
}


@pytest.mark.parametrize("course", list(_COURSES))
@pytest.mark.parametrize(
    ("storage", "directories"), [("SortedLedgerStorage", "several"), ("InterleavedLedgerStorage", "one")]
)
def test_either_bookie_goes_on_with_the_others_directories(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, storage: str, directories: str, course: str
) -> None:
    """Under one id and configuration, each with what those before it wrote."""
    uri = new_cluster(zk_only, tmp_path.name)
    settings = {
        **ApacheBookie.sizes,
        **bookie_settings(tmp_path / "data", *DIRECTORIES[directories]),
        "ledgerStorageClass": f"org.apache.bookkeeper.bookie.{storage}",
    }
    shelf = Shelf(uri)
    kinds = _COURSES[course]
    with Bookies(tmp_path / "bookies", uri, [kinds[0][0]], settings) as bookies:
        for kind, killed in kinds:
            if not bookies.bookies[0].running:
                bookies.change_kind(kind)
                bookies.start()
            (bookie,) = bookies.bookies
            shelf.check(bookie.port)
            for volume in shelf.volumes:
                if volume.payloads and not volume.explicit_lac:
                    read = java_client.read(
                        uri, volume.ledger_id, recovery=False, wire=2, password=PASSWORD.decode(), with_payloads=True
                    )
                    assert read.payloads == volume.payloads
            shelf.fill()
            shelf.check(bookie.port)
            if killed:
                bookie.kill()
            else:
                bookie.terminate()
            java_client.forget(uri)
