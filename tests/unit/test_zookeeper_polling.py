"""The wait for sockets of ZooKeeper's client answers as kazoo's own does."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest
from kazoo.handlers.utils import selector_select

from bk_spark.bookie.metadata.zookeeper_access import PollingHandler


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def idle(theirs: socket.socket) -> None:
    pass


def sent(theirs: socket.socket) -> None:
    theirs.send(b"x")


def closed(theirs: socket.socket) -> None:
    theirs.close()


def reset(theirs: socket.socket) -> None:
    """Closed while there is something unread."""
    theirs.recv(1)
    theirs.close()


def full(theirs: socket.socket) -> None:
    """What was sent before fills the buffers."""


@pytest.mark.parametrize("peer", [idle, sent, closed, reset, full])
def test_sockets_are_ready_as_for_kazoo(pair: tuple[socket.socket, socket.socket], peer: object) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    if peer is reset:
        ours.send(b"ab")
    if peer is full:
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 65_536)
    assert callable(peer)
    peer(theirs)
    other, silent = socket.socketpair()
    with other, silent:
        for readers, writers in (([ours], []), ([], [ours]), ([ours, other], []), ([other], [ours])):
            found = PollingHandler().select(readers, writers, [], 0)
            assert found == selector_select(readers, writers, [], 0)
    assert PollingHandler().select([], [ours], [], 0)[1] == ([] if peer is full else [ours])
    assert PollingHandler().select([ours], [], [], 0)[0] == ([] if peer in (idle, full) else [ours])


def test_a_wait_ends_in_time_or_when_there_is_something(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    # A negative time must not be endless, as it is for poll.
    for timeout_s in (0.001, 0, -1):
        assert PollingHandler().select([ours], [], [], timeout_s) == ([], [], [])
    theirs.send(b"x")
    assert PollingHandler().select([ours], [], []) == ([ours], [], [])


def test_a_closed_socket_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    fd = os.dup(ours.fileno())
    os.close(fd)
    for select in (PollingHandler().select, selector_select):
        with pytest.raises(ValueError):
            select([fd], [], [], 0)
    ours.close()
    for select in (PollingHandler().select, selector_select):
        with pytest.raises(TypeError):
            select([ours], [], [], 0)


def test_descriptors_above_1024(pair: tuple[socket.socket, socket.socket]) -> None:
    """Where select() itself ends."""
    ours, theirs = pair
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1100:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    fd = os.dup2(ours.fileno(), 1100)
    with socket.socket(fileno=fd) as high:
        theirs.send(b"x")
        assert PollingHandler().select([high], [], [], 1)[0] == [high]
