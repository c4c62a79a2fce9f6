"""Names of logs, applications and runs as names of znodes."""

from __future__ import annotations

import random
from urllib.parse import unquote

import pytest

from bk_spark.log.formats.names import LogPaths, check_log_name, check_root, escape_id, ledger_id_of, ledger_ids_of
from bk_spark.protocol.errors import InvalidArgumentError

PATHS = LogPaths("/bk_spark/logs", "flights", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")


@pytest.mark.parametrize("name", ["a", "9", "_schemas", "Flights-2013.csv", "a" * 255, "a..b"])
def test_names_that_are_allowed(name: str) -> None:
    assert check_log_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "a/b", "a b", "a\n", "ä", "a,b", "a" * 256, "a\0"])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="log name"):
        check_log_name(name)


@pytest.mark.parametrize("root", ["/", "", "logs", "/a/", "/a//b", "/a/..", "//"])
def test_roots_that_are_not_allowed(root: str) -> None:
    with pytest.raises(InvalidArgumentError, match="root of logs"):
        check_root(root)


def test_paths() -> None:
    assert PATHS.head == "/bk_spark/logs/flights"
    assert PATHS.identity == "/bk_spark/logs/flights/id-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    assert PATHS.page(12) == "/bk_spark/logs/flights/pages/0000000012"
    assert PATHS.app("my app") == "/bk_spark/logs/flights/apps/my%20app"
    assert PATHS.registration("a/b", "r.1", 77) == "/bk_spark/logs/flights/ledgers/a%2Fb/r%2E1/77"


@pytest.mark.parametrize(
    "text", [".", "..", "a/../../settings", "/", "%2F", "a%", "zażółć", "👍", "\0", "\x1f\ufeff", " "]
)
def test_any_text_is_one_safe_znode_name(text: str) -> None:
    name = escape_id("application", text)
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-~%")
    assert unquote(name) == text


def test_different_texts_have_different_names() -> None:
    rng = random.Random(3)
    texts = {"".join(rng.choice("ab./%2EF\u00e4") for _ in range(rng.randint(1, 6))) for _ in range(5_000)}
    assert len({escape_id("run", text) for text in texts}) == len(texts)


def test_texts_that_cannot_be_names() -> None:
    with pytest.raises(InvalidArgumentError, match="application must be 1 to 255 bytes"):
        escape_id("application", "")
    with pytest.raises(InvalidArgumentError, match="not 256"):
        escape_id("run", "x" * 256)
    with pytest.raises(InvalidArgumentError, match="not valid Unicode"):
        escape_id("run", "\ud800")


@pytest.mark.parametrize("ledger_id", [0, 7, 10, 2**31, 2**63 - 1])
def test_a_ledger_is_found_by_the_name_of_its_registration(ledger_id: int) -> None:
    for path in (PATHS.registration("app", "run", ledger_id), PATHS.appended_ledger(ledger_id)):
        assert ledger_id_of(path.rpartition("/")[2]) == ledger_id


@pytest.mark.parametrize("name", ["", "a", "-1", "+1", "1_0", "007", "00", "٣", "²", "1\n", str(2**63), "9" * 5_000])
def test_other_names_are_of_no_ledger(name: str) -> None:
    assert ledger_id_of(name) is None
    assert ledger_ids_of([name, "12", name, "3"]) == [12, 3]
