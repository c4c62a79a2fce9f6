"""``bkctl recover`` and ``decommission``: what they refuse, what they would copy, and the estimate of progress."""

from __future__ import annotations

import sys

import pytest

from bk_spark.bkctl import main
from bk_spark.bkctl.bookie_ledgers import BookieLedger
from bk_spark.bkctl.logs import progress
from bk_spark.bkctl.members import Members
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import ledger

LIVE, READ_ONLY, LOST, OTHER = "b1:3181", "b2:3181", "b3:3181", "b4:3181"
MEMBERS = Members(frozenset([LIVE, OTHER]), frozenset([READ_ONLY]), frozenset([LIVE, READ_ONLY, LOST]))


@pytest.mark.parametrize("bookie", [LIVE, READ_ONLY])
def test_a_registered_bookie_needs_force(bookie: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"bookie {bookie} is registered.*or give --force to empty it"):
        MEMBERS.check_lost([LOST, bookie], force=False, otherwise="empty it")
    MEMBERS.check_lost([LOST, bookie], force=True, otherwise="empty it")
    MEMBERS.check_lost([LOST], force=False, otherwise="empty it")


def test_a_bookie_is_known_by_cookie_registration_or_a_ledger() -> None:
    # OTHER has no cookie (Apache allows that), and b8 is only in the metadata of a ledger.
    MEMBERS.check_known([LIVE, READ_ONLY, LOST, OTHER, "b8:3181"], {"b8:3181"})
    with pytest.raises(InvalidArgumentError, match="bookie b8:3181, b9:3181 is unknown"):
        MEMBERS.check_known([LOST, "b9:3181", "b8:3181"], set())


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (READ_ONLY, "the bookie is read-only"),
        (LOST, "copies need another bookie"),
        ("b9:3181", "the bookie is unknown"),
    ],
)
def test_unfit_targets(target: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        MEMBERS.check_targets([LIVE, target], [LOST])
    MEMBERS.check_targets([LIVE, OTHER], [LOST])


def test_a_lost_target_and_no_bookie_at_all() -> None:
    with pytest.raises(InvalidArgumentError, match=f"--to {LOST}: the bookie is not registered"):
        MEMBERS.check_targets([LOST], ["b9:3181"])
    with pytest.raises(InvalidArgumentError, match="no other bookie is writable"):
        MEMBERS.check_targets([], [LIVE, OTHER])


def test_what_would_be_copied() -> None:
    striped = ledger(Quorum(3, 2, 2), (0, "b1 b2 b3"), (30, "b2 b4 b3")).closed(59, 6_000)
    found = BookieLedger.of(7, striped, frozenset(["b1"]))
    assert found == BookieLedger(7, "CLOSED", 2, 20, 2_000, False)
    both = BookieLedger.of(7, striped, frozenset(["b1", "b3"]))
    assert both is not None
    assert (both.entries, both.size_bytes) == (60, 6_000)
    assert BookieLedger.of(7, striped, frozenset(["b9"])) is None
    empty = ledger(Quorum(3, 2, 2), (0, "b1 b2 b3")).closed(-1, 0)
    assert BookieLedger.of(7, empty, frozenset(["b1"])) == BookieLedger(7, "CLOSED", 2, 0, 0, False)


def test_nothing_is_known_of_an_open_fragment() -> None:
    writing = ledger(Quorum(3, 3, 2), (0, "b1 b2 b3"), (30, "b2 b4 b3"))
    assert BookieLedger.of(7, writing, frozenset(["b1"])) == BookieLedger(7, "OPEN", 3, 30, None, False)
    assert BookieLedger.of(7, writing, frozenset(["b4"])) == BookieLedger(7, "OPEN", 3, 0, None, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["recover"], "the following arguments are required: BOOKIE"),
        (["recover", "a/b"], "'a/b' is not a bookie id"),
        (["recover", LOST, "--to"], "argument --to: expected at least one argument"),
        (["recover", LOST, "--to", ".."], "argument --to: '..' is not a bookie id"),
        (["recover", LOST, "--ledgers-at-once", "0"], "argument --ledgers-at-once: '0' must be"),
        (["recover", LOST, "--lock-wait", "-1"], "argument --lock-wait"),
        (["decommission", LOST, OTHER], f"unrecognized arguments: {OTHER}"),
        (["decommission", LOST, "--to", OTHER], "unrecognized arguments: --to"),
        (["decommission", LOST, "--patience", "0"], "argument --patience: '0' must be"),
    ],
)
def test_wrong_command_lines(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--metadata-service-uri", "zk://localhost:1/ledgers", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1


def test_progress_with_an_estimate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    drawn = []
    with progress.Progress() as bar:
        for at_s, done in ((100.0, 0), (101.0, 10), (104.0, 20), (110.0, 25), (700.0, 50), (701.0, 100)):
            now_s = at_s
            bar.update("ledgers", done, 100, ", none fails")
            drawn.append(capsys.readouterr().err.partition("of 100, none fails")[2])
        # Another count begins anew.
        bar.update("entries", 1, 100)
        assert "left" not in capsys.readouterr().err
        now_s = 702.0
        bar.count("ledgers searched", 5)
        assert capsys.readouterr().err.endswith("ledgers searched: 5")
    assert drawn == ["", "", ", about 16 s left", ", about 30 s left", ", about 10 min left", ""]
