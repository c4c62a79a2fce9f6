"""The model of the disk keeps what was synced, and may lose everything else."""

from __future__ import annotations

import random

import pytest

from tests.crash.choices import ALL, EXTREMES, Mixture, Torn
from tests.crash.disk import Disk
from tests.crash.operations import (
    Allocate,
    Create,
    FailedSync,
    Image,
    Link,
    MakeDirectory,
    Operation,
    Remove,
    Rename,
    Sync,
    SyncAll,
    SyncDirectory,
    Truncate,
    Write,
)

EMPTY = Image(frozenset({""}), {}, {})
NOTHING = EXTREMES["nothing"]


def disk(*operations: Operation, base: Image = EMPTY) -> Disk:
    result = Disk(base, {path: number for number, path in enumerate(sorted(base.files))})
    for operation in operations:
        result.apply(operation)
    return result


def image(files: dict[str, bytes], links: dict[str, str] | None = None, directories: tuple[str, ...] = ()) -> Image:
    return Image(frozenset({"", *directories}), files, links or {})


def test_what_was_synced_stays() -> None:
    written: list[Operation] = [Create("a", 0), Write(0, 0, b"old"), Write(0, 2, b"new"), Sync(0), SyncDirectory("")]
    for choice in EXTREMES.values():
        assert disk(*written).image(choice) == image({"a": b"olnew"})


def test_a_synced_file_whose_directory_was_not_may_be_gone() -> None:
    state = disk(Create("a", 0), Write(0, 0, b"data"), Sync(0))
    assert state.image(NOTHING) == EMPTY
    assert state.image(EXTREMES["names"]) == image({"a": b"data"})


def test_a_name_without_content() -> None:
    state = disk(Create("a", 0), SyncDirectory(""), Allocate(0, 4), Write(0, 0, b"data"))
    assert state.image(NOTHING) == image({"a": b""})
    assert state.image(EXTREMES["sizes"]) == image({"a": bytes(4)})
    assert state.image(ALL) == image({"a": b"data"})
    assert state.content("a") == b"data"


def test_everything_below_an_unsynced_directory_may_be_gone() -> None:
    state = disk(MakeDirectory("d"), Create("d/a", 0), Sync(0), SyncDirectory("d"))
    assert state.image(NOTHING) == EMPTY
    state.apply(SyncDirectory(""))
    assert state.image(NOTHING) == image({"d/a": b""}, directories=("d",))


def test_a_rename_happens_at_once_or_not_at_all() -> None:
    base = image({"a": b"old"})
    state = disk(Create("b", 1), Write(1, 0, b"new"), Sync(1), Rename("b", "a"), base=base)
    assert state.image(NOTHING) == base
    assert state.image(EXTREMES["newest"]) == image({"a": b"new"})
    found = {state.image(Mixture(random.Random(seed))).files.get("a") for seed in range(50)}
    assert found == {b"old", b"new"}


def test_a_removed_name_may_come_back() -> None:
    state = disk(Remove("a"), base=image({"a": b"data"}))
    assert state.image(NOTHING) == image({"a": b"data"})
    assert state.image(ALL) == EMPTY


def test_two_names_of_one_file() -> None:
    state = disk(Link("a", "b"), Write(0, 0, b"DA"), base=image({"a": b"data"}))
    assert state.image(ALL) == image({"a": b"DAta"}, {"b": "a"})
    again = disk(Write(0, 0, b"x"), base=state.image(ALL))
    assert again.image(ALL) == image({"a": b"xAta"}, {"b": "a"})


def test_no_sync_makes_good_what_a_failed_one_left() -> None:
    state = disk(Create("a", 0), SyncAll(), Write(0, 0, b"lost"), FailedSync(0), Write(0, 4, b"kept"), Sync(0))
    assert state.image(NOTHING) == image({"a": bytes(4) + b"kept"})
    assert state.image(ALL) == image({"a": b"lostkept"})


def test_truncated_or_not() -> None:
    state = disk(Truncate(0, 2), base=image({"a": b"data"}))
    assert state.image(NOTHING) == image({"a": b"data"})
    assert state.image(ALL) == image({"a": b"da"})


@pytest.mark.parametrize(
    ("size", "offset", "end", "kept"),
    [
        (0, 0, 700, 696),  # what lengthens the file ends after any eight bytes
        (0, 0, 300, 0),  # but its first sector is whole
        (2000, 0, 700, 512),  # sectors that were there before are whole
        (2000, 100, 700, 412),
        (2000, 1900, 500, 500),
    ],
)
def test_torn_writes(size: int, offset: int, end: int, kept: int) -> None:
    write = Write(0, offset, b"x" * 1000)
    state = disk(write, base=image({"a": bytes(size)}))
    content = state.image(Torn(write, end, NOTHING)).files["a"]
    assert content.count(b"x") == kept
    assert content == bytes(min(offset, size) if kept else size) + b"x" * kept + bytes(
        max(0, size - offset - kept)
    ) or (not kept and content == bytes(size))


def test_what_was_synced_after_a_failed_sync_lies_above_it() -> None:
    state = disk(Write(0, 0, b"lost"), FailedSync(0), Truncate(0, 2), Sync(0), base=image({"a": b"data"}))
    assert state.image(NOTHING) == image({"a": b"da"})
    assert state.image(ALL) == image({"a": b"lo"})
    assert state.content("a") == b"lo"
