"""The servers of the model world: bookies that hold one ledger, and the znode of its metadata."""

from __future__ import annotations

from bk_spark.protocol.codes import LAST_ENTRY, Code, OpV2
from tests.simulation.bytes_cache import (
    AddSeen,
    ForceSeen,
    PollSeen,
    ReadSeen,
    code_answer,
    deferred_answer,
    entry_answer,
    force_answer,
    lac_in,
    poll_answer,
    request_in,
    with_lac,
)
from tests.simulation.events import (
    REFUSE,
    STORE,
    Answer,
    Changed,
    Command,
    Effect,
    Event,
    Expire,
    Fenced,
    Forgot,
    MetaCall,
    MetadataChanged,
    MetaReply,
    Request,
    Stored,
    Sync,
    Way,
    Withdraw,
)


class ModelBookie:
    """One ledger at one bookie. What is in ``memory`` is served; only what is on ``disk`` survives a crash. Adds and
    fences are answered once they are on disk.

    Commands: ``crash``, ``restart``; ``wipe`` (crash, and the disk is empty; the cookie check then prevents a start),
    ``force 0|1`` (it starts all the same, in limbo if 1); ``forget <entries…>`` (crash of a bookie that answers before
    its journal is synced: it lost these, and will start in limbo); ``flip <entry>`` (bytes of an entry are damaged);
    ``drop <entries…>`` (entries that it need not keep are gone); ``delete`` (garbage collection of the ledger); ``sync
    at once``; ``boast <entries>`` (it tells polls that so many more entries are confirmed); ``lie <entries>`` (it also
    writes that into the entries that it gives as its last; used only if their digests expose it); ``usurp`` (somebody
    else uses the ledger's id here, with another password, unless the bookie knows the ledger already).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.disk: dict[int, bytes] = {}
        self.memory: dict[int, bytes] = {}
        self.fenced = self.fenced_on_disk = False
        #: The ledger was fenced, and was deleted since. A crash makes it forget that.
        self.deleted_fenced = False
        #: It knows the ledger with another password.
        self.usurped = False
        #: Entries with flipped bytes.
        self.damaged: frozenset[int] = frozenset()
        self.cookie_refuses = self.limbo = False
        #: Entries that were on a disk and are lost.
        self.lost: frozenset[int] = frozenset()
        #: Senders of adds that were answered before a sync, and those whose connection a crash has broken since: adds
        #: and forces use the same connection.
        self.deferred: frozenset[str] = frozenset()
        self.broken: frozenset[str] = frozenset()
        #: Once nobody can crash any more, a slow answer is equivalent to a slow sync.
        self.syncs_at_once = False
        #: Requests that wait for a sync, each with its answer.
        self.waiting: list[tuple[Request, bytes]] = []
        #: Long polls that wait for news.
        self.polls: list[Request] = []
        self.boasts = self.lies = 0

    def hold(self, entry_id: int, stored: bytes) -> None:
        """Hold the entry from the beginning."""
        self.disk[entry_id] = self.memory[entry_id] = stored

    def copies(self, entry_id: int) -> bool:
        """Whether the entry survives a crash here."""
        return entry_id in self.disk and entry_id not in self.damaged

    def holdings(self) -> str:
        """The contents, in words."""
        words = ["up" if self.up else "down"]
        words += [f"disk {' '.join(map(str, sorted(self.disk))) or '-'}"]
        if self.memory != self.disk:
            words.append(f"memory {' '.join(map(str, sorted(self.memory))) or '-'}")
        for name, value in (
            ("fenced", self.fenced_on_disk),
            ("fenced in memory", self.fenced and not self.fenced_on_disk),
            ("limbo", self.limbo),
            ("cookie refused", self.cookie_refuses and not self.up),
        ):
            words += [name] if value else []
        words += [
            f"{name} {' '.join(map(str, sorted(entries)))}"
            for name, entries in (("damaged", self.damaged), ("lost", self.lost))
            if entries
        ]
        return ", ".join(words)

    def handle(self, event: Event, way: Way) -> list[Effect]:
        if isinstance(event, Request):
            return self._request(event, way)
        if isinstance(event, Sync):
            return self._sync()
        if isinstance(event, Expire):
            return self._answer_polls([event.poll])
        assert isinstance(event, Command)
        return self._command(event)

    def _request(self, request: Request, way: Way) -> list[Effect]:
        if not self.up or request.actor in self.broken:
            if request.late:
                return []
            self.broken -= {request.actor}
            return [request.answer(None)]
        seen = request_in(request.frame)
        if isinstance(seen, AddSeen):
            return self._add(request, seen, way)
        if isinstance(seen, ForceSeen):
            return self._wait(request, force_answer())
        if isinstance(seen, PollSeen):
            return self._poll(request, seen)
        if way == REFUSE:
            return _answer(request, code_answer(OpV2.READ, seen.entry_id, Code.TOO_MANY_REQUESTS))
        if seen.fencing and self.usurped:
            return _answer(request, code_answer(OpV2.READ, seen.entry_id, Code.UNAUTHORIZED))
        if seen.fencing and self.deleted_fenced:
            return _answer(request, code_answer(OpV2.READ, seen.entry_id, Code.NO_LEDGER))
        fenced: list[Effect] = [Fenced(self.name)] if seen.fencing and not self.fenced else []
        # A poll that comes after the fence waits (compatibility.md §1.8).
        woken = self._answer_polls(self.polls) if seen.fencing and not self.fenced else []
        self.fenced |= seen.fencing
        answer = self._read(seen)
        if seen.fencing and not self.fenced_on_disk:
            return [*fenced, *self._wait(request, answer), *woken]
        return [*fenced, *_answer(request, answer), *woken]

    @property
    def knows_ledger(self) -> bool:
        return bool(self.memory) or self.fenced

    @property
    def last_add_confirmed(self) -> int:
        """The last add confirmed according to its entries."""
        return max(map(lac_in, self.memory.values()), default=-1)

    def _poll(self, request: Request, seen: PollSeen) -> list[Effect]:
        if self.limbo or not self.knows_ledger:
            return _answer(request, poll_answer(Code.UNKNOWN_LEDGER_STATE if self.limbo else Code.NO_LEDGER, None))
        self.polls.append(request)
        if self.last_add_confirmed + self.boasts > seen.previous_lac:
            return self._answer_polls([request])
        return [Expire(request)]

    def _answer_polls(self, polls: list[Request]) -> list[Effect]:
        """Those of the entries that are still held."""
        answered = [poll for poll in polls if poll in self.polls]
        self.polls = [poll for poll in self.polls if poll not in answered]
        answer = poll_answer(Code.OK, self.last_add_confirmed + self.boasts) if answered else b""
        return [effect for poll in answered for effect in _answer(poll, answer)]

    def _news(self) -> list[Effect]:
        """Answer the polls that an add brings news for."""
        lac = self.last_add_confirmed + self.boasts
        return self._answer_polls([poll for poll in self.polls if previous_lac_of(poll) < lac])

    def _add(self, request: Request, seen: AddSeen, way: Way) -> list[Effect]:
        def answer(code: Code) -> bytes:
            return deferred_answer(seen.entry_id, code) if seen.deferred else code_answer(OpV2.ADD, seen.entry_id, code)

        if self.usurped:
            return _answer(request, answer(Code.UNAUTHORIZED))
        if (self.fenced or self.deleted_fenced) and not seen.recovery:
            return _answer(request, answer(Code.FENCED))
        if way == REFUSE:
            return _answer(request, answer(Code.TOO_MANY_REQUESTS))
        if self.deleted_fenced:
            self.fenced, self.deleted_fenced = True, False
        self.memory[seen.entry_id] = seen.stored
        self.damaged -= {seen.entry_id}
        stored: list[Effect] = [Stored(self.name, seen.entry_id, seen.stored)]
        if self.polls:
            stored += self._news()
        if not seen.deferred:
            return [*stored, *self._wait(request, answer(Code.OK))]
        self.deferred |= {request.actor}
        return [*stored, *_answer(request, answer(Code.OK)), *self._wait(request.unawaited(), b"")]

    def _read(self, seen: ReadSeen) -> bytes:
        asked = seen.entry_id
        found = max(self.memory, default=None) if asked == LAST_ENTRY else asked
        stored = None if found is None else self.memory.get(found)
        if found in self.damaged:
            return code_answer(OpV2.READ, asked, Code.IO_ERROR)
        if self.limbo and (stored is None or asked == LAST_ENTRY):
            return code_answer(OpV2.READ, asked, Code.UNKNOWN_LEDGER_STATE)
        if stored is None:
            return code_answer(OpV2.READ, asked, Code.NO_ENTRY if self.knows_ledger else Code.NO_LEDGER)
        if self.lies and asked == LAST_ENTRY and not seen.fencing:
            stored = with_lac(stored, self.last_add_confirmed + self.lies)
        return entry_answer(asked, stored)

    def _wait(self, request: Request, answer: bytes) -> list[Effect]:
        self.waiting.append((request, answer))
        if self.syncs_at_once:
            return self._sync()
        return [Sync(self.name)] if len(self.waiting) == 1 else []

    def _sync(self) -> list[Effect]:
        self.disk = dict(self.memory)
        self.fenced_on_disk = self.fenced
        waiting, self.waiting = self.waiting, []
        return [request.answer(answer) for request, answer in waiting if not request.late]

    def _command(self, command: Command) -> list[Effect]:
        match command.verb:
            case "crash":
                return self._crash()
            case "restart":
                if not self.up and not self.cookie_refuses:
                    self._start()
            case "sync at once":
                self.syncs_at_once = True
                return [Withdraw(Sync(self.name)), *self._sync()] if self.waiting else []
            case "wipe":
                effects = self._crash()
                self.lost |= self.disk.keys()
                self.disk = {}
                self.fenced_on_disk = False
                self.cookie_refuses = True
                return [*effects, Forgot(self.name)]
            case "forget":
                effects = self._crash()
                gone = {int(entry) for entry in command.arguments}
                self.lost |= gone & self.disk.keys()
                self.disk = {entry: stored for entry, stored in self.disk.items() if entry not in gone}
                self.limbo = self.fenced_on_disk = True
                return [*effects, Forgot(self.name)]
            case "usurp":
                self.usurped = not self.knows_ledger
            case "boast":
                self.boasts = int(command.arguments[0])
            case "lie":
                self.boasts = self.lies = int(command.arguments[0])
            case "force":
                self.limbo = bool(command.arguments[0])
                self.fenced_on_disk |= self.limbo
                self._start()
            case "flip":
                self.damaged |= {int(entry) for entry in command.arguments}
                self.lost |= self.damaged
                return [Forgot(self.name)]
            case "drop":
                for entry in command.arguments:
                    self.disk.pop(int(entry), None)
                    self.memory.pop(int(entry), None)
                return [Forgot(self.name)]
            case "delete":
                woken = self._answer_polls(self.polls)
                self.deleted_fenced = self.deleted_fenced or self.fenced
                self.disk, self.memory = {}, {}
                self.fenced = self.fenced_on_disk = False
                return [*woken, Forgot(self.name)]
            case _:
                raise AssertionError(command)
        return []

    def _crash(self) -> list[Effect]:
        """Requests that wait for a sync fail with their connections."""
        self.up = self.deleted_fenced = False
        self.broken |= self.deferred
        self.deferred = frozenset()
        waiting, self.waiting = self.waiting, []
        polls, self.polls = self.polls, []
        asked = [*polls, *(request for request, _ in waiting)]
        broken: list[Effect] = [request.answer(None) for request in asked if not request.late]
        return [Withdraw(Sync(self.name)), *broken] if waiting else broken

    def _start(self) -> None:
        self.up = True
        self.memory = dict(self.disk)
        self.fenced = self.fenced_on_disk


def previous_lac_of(poll: Request) -> int:
    seen = request_in(poll.frame)
    assert isinstance(seen, PollSeen)
    return seen.previous_lac


def _answer(request: Request, frame: bytes) -> list[Effect]:
    return [] if request.late else [request.answer(frame)]


class ModelStore:
    """The ledger's znode. A read whose tag begins with "watch" also watches it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.version = 0
        self.watchers: frozenset[str] = frozenset()

    def handle(self, event: Event, way: Way) -> list[Effect]:
        assert isinstance(event, MetaCall)
        effects: list[Effect] = []
        if event.data is None:
            if event.tag[0] == "watch":
                self.watchers |= {event.actor}
            reply = event.reply("ok", self.data, self.version)
        elif event.version == self.version:
            effects += [MetadataChanged(self.data, event.data), *map(Changed, sorted(self.watchers))]
            self.watchers = frozenset()
            self.data = event.data
            self.version += 1
            reply = event.reply("ok", self.data, self.version)
        else:
            reply = event.reply("conflict")
        return effects if event.late else [*effects, reply]


class Links:
    """Which links are cut, in which direction. Commands: ``cut <from> <to>``, ``mend <from> <to>``, ``mend``."""

    def __init__(self) -> None:
        self.cut: frozenset[tuple[str, str]] = frozenset()

    def handle(self, event: Event, way: Way) -> list[Effect]:
        assert isinstance(event, Command)
        if not event.arguments:
            self.cut = frozenset()
        else:
            start, end = map(str, event.arguments)
            self.cut = self.cut | {(start, end)} if event.verb == "cut" else self.cut - {(start, end)}
        return []

    def block(self, event: Event) -> bool:
        """Whether ``event`` is a message on a link that is cut."""
        match event:
            case Request(actor, bookie):
                return (actor, bookie) in self.cut
            case Answer(actor, bookie):
                return (bookie, actor) in self.cut
            case MetaCall(actor):
                return (actor, STORE) in self.cut
            case MetaReply(actor):
                return (STORE, actor) in self.cut
        return False
