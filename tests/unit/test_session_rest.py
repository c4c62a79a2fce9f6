"""Sessions that end while nobody asks, in every order of what may happen meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from bk_spark.bookie.metadata.session_rest import SessionRest

WAIT_S = 60.0


class Session:
    """What begins and ends; ``gate`` holds the end up while it is clear."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.ending = threading.Event()
        self.ended = threading.Semaphore(0)
        self.rest = SessionRest(0.02, self._begin, self._end)

    def _begin(self) -> None:
        self.events.append("begin")

    def _end(self) -> None:
        self.ending.set()
        assert self.gate.wait(WAIT_S)
        self.events.append("end")
        self.ended.release()

    def ask(self) -> None:
        with self.rest.awake(time.monotonic() + WAIT_S):
            pass

    def wait_ended(self) -> None:
        assert self.ended.acquire(timeout=WAIT_S)


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    yield made
    made.gate.set()
    made.rest.close()
    assert not [one for one in threading.enumerate() if one.name == "zookeeper-rest"]


def test_a_session_ends_when_nobody_asks_and_begins_with_the_next_question(session: Session) -> None:
    for _ in range(3):
        session.ask()
        session.wait_ended()
    assert session.events == ["end", "begin", "end", "begin", "end"]


def test_a_question_under_way_keeps_it(session: Session) -> None:
    with session.rest.awake(0.0):
        session.ask()
        assert not session.ending.wait(0.1)
    session.wait_ended()


def test_it_does_not_rest_while_it_may_not(session: Session) -> None:
    session.rest.may_rest = lambda: False
    session.ask()
    assert not session.ending.wait(0.1)
    session.rest.may_rest = lambda: True
    session.wait_ended()


def test_who_asks_while_it_ends_gets_the_next_one(session: Session) -> None:
    session.gate.clear()
    session.ask()
    assert session.ending.wait(WAIT_S)
    asking = threading.Thread(target=session.ask)
    asking.start()
    asking.join(0.05)
    assert asking.is_alive()
    assert session.events == []
    session.gate.set()
    asking.join(WAIT_S)
    assert session.events[:2] == ["end", "begin"]


def test_who_asks_while_it_ends_waits_no_longer_than_he_has_time(session: Session) -> None:
    session.gate.clear()
    session.ask()
    assert session.ending.wait(WAIT_S)
    with session.rest.awake(time.monotonic() + 0.02):
        assert session.events == []


def test_nothing_begins_or_ends_after_it_was_closed(session: Session) -> None:
    session.ask()
    session.rest.close()
    before = list(session.events)
    session.ask()
    assert not session.ending.wait(0.1) or before == ["end"]
    assert session.events == before
