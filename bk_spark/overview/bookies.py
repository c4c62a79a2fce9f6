"""Collects the bookies that are or were registered, and what each reports over HTTP."""

from __future__ import annotations

import heapq
import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.placement import DEFAULT_RACK
from bk_spark.bookie.placement.racks import Racks
from bk_spark.overview.http_call import HttpCaller, NoAnswerError
from bk_spark.protocol.errors import BookieUnavailableError, MetadataFormatError
from bk_spark.protocol.metadata.registration import NATIVE_PROTOCOL, BookieServiceInfo, Endpoint

#: The most bookies that are shown and asked over HTTP, and how long the answers of all together may take.
MAX_SHOWN: Final = 200
_ASK_ALL_S: Final = 5.0
_THREADS: Final = 16
#: Disks of one bookie, those with the least room.
_MAX_DISKS: Final = 100
_MAX_INT64: Final = (1 << 63) - 1
#: As Apache's bookie registers it.
_HTTP_ENDPOINT: Final = "httpserver"

#: Rates are those since the last collection, if it is not older.
RATES_OVER_S: Final = 60.0
_SAMPLE: Final = re.compile(r"^(\w{1,500})(?:\{([^}\n]*)\})? (\S+)$", re.MULTILINE)
_DISK: Final = re.compile(r"bookie_ledger_dir_(.+)_usage")
#: What is counted, by the name of its rate. Apache's bookie has all but the last under the same names.
_COUNTERS: Final = {
    "adds_per_s": ("bookkeeper_server_ADD_ENTRY_REQUEST_count", 'success="true"'),
    "reads_per_s": ("bookkeeper_server_READ_ENTRY_REQUEST_count", 'success="true"'),
    "written_bytes_per_s": ("bookie_WRITE_BYTES", ""),
    "read_bytes_per_s": ("bookie_READ_BYTES", ""),
    "copied_entries_per_s": ("replication_replication_worker_NUM_ENTRIES_WRITTEN", ""),
}
_ADD_P99: Final = ("bookkeeper_server_ADD_ENTRY_REQUEST", 'success="true",quantile="0.99"')
_CONNECTIONS: Final = ("bookkeeper_server_connections", "")
_WANTED: Final = frozenset({*_COUNTERS.values(), _ADD_P99, _CONNECTIONS})
_WRITABLE, _READ_ONLY, _GONE = "writable", "read-only", "not registered"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Said:
    """What one bookie reported. ``counts`` are its counters at ``at_s``."""

    at_s: float
    counts: Mapping[str, float]
    facts: Record


class Bookies:
    """Collects the bookies. It remembers counters from one collection to the next, for rates.

    Parameters
    ----------
    zk, root
        The session, and the root of the cluster's znodes.
    racks
        Given a function that returns a bookie's address, returns where racks are looked up.
    caller
        How bookies are asked.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        root: str,
        racks: Callable[[Callable[[str], tuple[str, int]]], Racks],
        caller: Callable[[], HttpCaller],
    ) -> None:
        self._zk = zk
        self._root = root
        self._addresses: dict[str, tuple[str, int]] = {}
        self._racks = racks(self._address)
        self._caller = caller
        self._before: dict[str, _Said] = {}
        self._threads: list[threading.Thread] = []

    def collect(self) -> tuple[list[Record], dict[str, int]]:
        """Return a record for each bookie that is shown, by id, and the number of all bookies by state."""
        available = f"{self._root}/available"
        # A bookie creates its cookie on its first start. It remains while the bookie is down.
        states = dict.fromkeys(self._zk.children(f"{self._root}/cookies") or (), _GONE)
        states |= dict.fromkeys(set(self._zk.children(available) or ()) - {"readonly"}, _WRITABLE)
        states |= dict.fromkeys(self._zk.children(f"{available}/readonly") or (), _READ_ONLY)
        known = _shown(states)
        folders = {_WRITABLE: available, _READ_ONLY: f"{available}/readonly"}
        paths = {each: f"{folders[states[each]]}/{each}" for each in known if states[each] in folders}
        found = self._zk.get_many(list(paths.values()))
        infos = {each: _info(znode.data, each) for each, path in paths.items() if (znode := found[path]) is not None}
        self._addresses = {
            each: (native.host, native.port)
            for each, info in infos.items()
            if info is not None and (native := info.endpoint(NATIVE_PROTOCOL)) is not None
        }
        racks = self._racks.of(known)
        endpoints = {each: _http(infos.get(each)) for each in known}
        said = self._ask({each: endpoint for each, endpoint in endpoints.items() if endpoint is not None})
        records = []
        for each in known:
            rack, address = racks[each], self._addresses.get(each)
            record = {
                "bookie": each,
                "state": states[each],
                "rack": None if rack == DEFAULT_RACK else rack,
                "address": None if address is None else "{}:{}".format(*address),
            }
            records.append(record | self._told(each, endpoints[each], said.get(each)))
        self._before = {each: one for each, one in said.items() if isinstance(one, _Said)}
        counts = Counter(states.values())
        return records, {state: counts[state] for state in (_WRITABLE, _READ_ONLY, _GONE)}

    def _address(self, bookie_id: str) -> tuple[str, int]:
        if bookie_id not in self._addresses:
            raise BookieUnavailableError("the bookie is not registered", bookie_id=bookie_id)
        return self._addresses[bookie_id]

    def _ask(self, endpoints: Mapping[str, Endpoint]) -> dict[str, _Said | str]:
        """Ask bookies at once. Return what each said, or why there is no answer."""
        if not endpoints:
            return {}
        caller = self._caller()
        waiting, said = deque(endpoints.items()), dict[str, _Said | str]()

        def ask() -> None:
            while True:
                try:
                    bookie_id, endpoint = waiting.popleft()
                except IndexError:
                    return
                said[bookie_id] = _said_by(caller, endpoint)

        # Not an executor: at exit the interpreter would wait for its threads, and a name lookup has no time limit.
        # Threads that still wait for one are missing in this collection.
        self._threads = [each for each in self._threads if each.is_alive()]
        free = _THREADS - len(self._threads)
        begun = [threading.Thread(target=ask, name="overview", daemon=True) for _ in range(min(free, len(endpoints)))]
        for thread in begun:
            thread.start()
        self._threads += begun
        deadline_s = time.monotonic() + _ASK_ALL_S
        for thread in begun:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        waiting.clear()
        found = said.copy()
        return {each: found.get(each, "no answer in time") for each in endpoints}

    def _told(self, bookie_id: str, endpoint: Endpoint | None, said: _Said | str | None) -> Record:
        record: Record = {"http": None, "problem": None, "disks": [], "free_bytes": None, "total_bytes": None}
        record |= {"add_p99_ms": None, "connections": None} | dict.fromkeys(_COUNTERS)
        if endpoint is not None:
            record["http"] = f"{endpoint.protocol}://{_in_url(endpoint.host)}:{endpoint.port}/"
        if isinstance(said, str):
            record["problem"] = said
        if not isinstance(said, _Said):
            return record
        record |= said.facts
        before = self._before.get(bookie_id)
        if before is not None and 0 < said.at_s - before.at_s <= RATES_OVER_S:
            for name, count in said.counts.items():
                grown = count - before.counts.get(name, count + 1)
                # A counter that fell belongs to a process that was restarted.
                record[name] = round(grown / (said.at_s - before.at_s), 3) if grown >= 0 else None
        return record


def _shown(states: Mapping[str, str]) -> list[str]:
    """Return the bookies to show, by id. Those that do not accept writes come first, but leave half to the others."""
    troubled = sorted(each for each, state in states.items() if state != _WRITABLE)
    others = sorted(each for each, state in states.items() if state == _WRITABLE)
    return sorted([*troubled[: max(MAX_SHOWN // 2, MAX_SHOWN - len(others))], *others][:MAX_SHOWN])


def _info(data: bytes, bookie_id: str) -> BookieServiceInfo | None:
    try:
        return BookieServiceInfo.decode(data, bookie_id)
    except MetadataFormatError:
        return None


def _http(info: BookieServiceInfo | None) -> Endpoint | None:
    endpoints: Iterable[Endpoint] = () if info is None else info.endpoints
    return next((each for each in endpoints if each.id == _HTTP_ENDPOINT and each.protocol in ("http", "https")), None)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _said_by(caller: HttpCaller, endpoint: Endpoint) -> _Said | str:
    where = endpoint.protocol, endpoint.host, endpoint.port
    try:
        text, at_s = caller.get(*where, "/metrics"), time.monotonic()
        samples = _samples(text)
        space = json.loads(caller.get(*where, "/api/v1/bookie/info"))
        free, total = int(space["freeSpace"]), int(space["totalSpace"])
    except NoAnswerError as error:
        return str(error)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "its answer cannot be read"
    if not (0 <= free <= _MAX_INT64 and 0 <= total <= _MAX_INT64):
        return "its answer cannot be read"
    disks: list[Record] = [
        {"directory": match[1], "used_percent": round(value, 1)}
        for (name, _), value in samples.items()
        if (match := _DISK.fullmatch(name)) is not None
    ]
    fullest = heapq.nlargest(_MAX_DISKS, disks, key=lambda disk: disk["used_percent"])
    facts = {
        "disks": sorted(fullest, key=lambda disk: disk["directory"]),
        "free_bytes": free,
        "total_bytes": total,
        "add_p99_ms": samples.get(_ADD_P99),
        "connections": samples.get(_CONNECTIONS),
    }
    return _Said(at_s, {name: samples[key] for name, key in _COUNTERS.items() if key in samples}, facts)


def _samples(text: str) -> dict[tuple[str, str], float]:
    """Return those samples of Prometheus' text format that are used, by name and labels, if their value is finite."""
    found = {}
    for match in _SAMPLE.finditer(text):
        name, labels, value = match[1], (match[2] or "").replace(", ", ","), match[3]
        if (name, labels) not in _WANTED and _DISK.fullmatch(name) is None:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        if abs(number) < float("inf"):
            found[name, labels] = number
    return found
