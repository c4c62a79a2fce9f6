"""How few copies of an entry are left (bookie_server/replication/auditing/lost_copies.py)."""

from __future__ import annotations

import pytest

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment
from bk_spark.protocol.quorum import Quorum
from bookie_server.replication.auditing.lost_copies import FewCopies, few_copies

pytestmark = pytest.mark.unit

WHOLE, STRIPED = Quorum(3, 3, 2), Quorum(4, 2, 2)


def made(quorum: Quorum, *ensembles: str, last: int | None = None) -> LedgerMetadata:
    """A ledger with a new ensemble every ten entries. It is closed if ``last`` is given."""
    segments = tuple(Segment(10 * number, tuple(each.split())) for number, each in enumerate(ensembles))
    metadata = LedgerMetadata(quorum, segments)
    return metadata if last is None else metadata.closed(last, 10)


@pytest.mark.parametrize(
    ("lost", "kind"),
    [
        ("", None),
        ("b9", None),
        ("b1", FewCopies.BELOW_WRITE_QUORUM),
        ("b2 b3", FewCopies.BELOW_ACK_QUORUM),
        ("b1 b2 b3", FewCopies.NONE),
    ],
)
def test_of_a_ledger_that_is_not_striped(lost: str, kind: FewCopies | None) -> None:
    for last in (None, 0, 9):
        assert few_copies(made(WHOLE, "b1 b2 b3", last=last), lost.split()) is kind


def test_of_a_striped_ledger_the_worst_write_set_counts() -> None:
    ledger = made(STRIPED, "b1 b2 b3 b4", last=9)
    # These are never in one write set.
    assert few_copies(ledger, ["b1", "b3"]) is FewCopies.BELOW_ACK_QUORUM
    assert few_copies(ledger, ["b1", "b2"]) is few_copies(ledger, ["b4", "b1"]) is FewCopies.NONE
    # Entry 0 alone is stored at b1 and b2.
    assert few_copies(made(STRIPED, "b1 b2 b3 b4", last=0), ["b3", "b4"]) is None


def test_losses_in_different_fragments_do_not_add_up() -> None:
    ledger = made(WHOLE, "b1 b2 b3", "b4 b5 b6", last=19)
    assert few_copies(ledger, ["b1", "b4"]) is FewCopies.BELOW_WRITE_QUORUM
    assert few_copies(ledger, ["b4", "b5", "b6"]) is FewCopies.NONE


def test_an_empty_ledger_has_lost_no_entry() -> None:
    assert few_copies(made(WHOLE, "b1 b2 b3", last=-1), ["b1", "b2", "b3"]) is None
    # An open one may have entries.
    assert few_copies(made(WHOLE, "b1 b2 b3"), ["b1", "b2", "b3"]) is FewCopies.NONE
