"""When the last add confirmed is told by itself."""

from __future__ import annotations

from bk_spark.protocol.ledger.explicit_lac import ExplicitLac


def test_a_lac_is_told_once_unless_adds_carried_it() -> None:
    told = ExplicitLac()
    assert not told.due(-1)
    assert told.due(4)
    # Nobody took it: again.
    assert told.due(4)
    told.on_told(4)
    assert not told.due(4)
    assert told.due(5)
    # An add that was sent with an older LAC changes nothing.
    told.on_told(2)
    assert not told.due(4)
    told.on_told(5)
    assert not told.due(5)
