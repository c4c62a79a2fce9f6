"""The bookies of a cluster, and the refusal of commands that name the wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Members:
    """The bookies that are registered, and those that have a cookie. Its checks raise InvalidArgumentError."""

    writable: frozenset[str]
    read_only: frozenset[str]
    with_cookie: frozenset[str]

    @classmethod
    def read(cls, client: BlockingClient) -> Members:
        """Ask ZooKeeper which bookies are registered, and which have a cookie."""
        registered = client.bookies()
        cookies = client.zookeeper.children(f"{client.root}/cookies") or ()
        return cls(
            frozenset(each.bookie_id for each in registered if not each.read_only),
            frozenset(each.bookie_id for each in registered if each.read_only),
            frozenset(cookies),
        )

    @property
    def registered(self) -> frozenset[str]:
        """The ids of the registered bookies, writable or not."""
        return self.writable | self.read_only

    def check_lost(self, bookies: Collection[str], *, force: bool, otherwise: str) -> None:
        """Refuse bookies that are registered, unless the operator forces it."""
        running = sorted(self.registered.intersection(bookies))
        if running and not force:
            raise InvalidArgumentError(
                f"bookie {', '.join(running)} is registered: it runs, or was killed a moment ago. Stop it and wait "
                f"until its session with ZooKeeper has expired, or give --force to {otherwise}"
            )

    def check_known(self, bookies: Collection[str], named: Collection[str], *, by: str = "ledger") -> None:
        """Refuse bookies without cookie and registration that no ledger, or what ``by`` says, has named, either."""
        unknown = sorted(set(bookies).difference(self.registered, self.with_cookie, named))
        if unknown:
            raise InvalidArgumentError(
                f"bookie {', '.join(unknown)} is unknown: it has no cookie, is not registered, and no {by} names it. "
                "bkctl bookies lists all bookies"
            )

    def check_listed(self, bookie: str, is_named: Callable[[], bool], *, by: str = "ledger") -> None:
        """Refuse to list what belongs to an unknown bookie: an empty list would say that it can go.

        ``is_named`` searches all ledgers, or what ``by`` says, so it is called only if nothing else knows the bookie.
        """
        if bookie not in self.registered and bookie not in self.with_cookie:
            self.check_known([bookie], [bookie] if is_named() else [], by=by)

    def check_tested(self, bookie: str) -> None:
        """Refuse a bookie that cannot take a new ledger."""
        if bookie in self.read_only:
            raise InvalidArgumentError(
                f"bookie {bookie} is read-only, so it takes no new ledger. Its log says why it is read-only; the cause "
                "is often a full disk"
            )
        if bookie not in self.writable:
            known = bookie in self.with_cookie
            what = "not registered: it is down, or not connected to ZooKeeper" if known else "unknown"
            raise InvalidArgumentError(f"bookie {bookie} is {what}. bkctl bookies lists all bookies")

    def check_targets(self, targets: Collection[str], replaced: Collection[str]) -> None:
        """Refuse targets that cannot take copies."""
        for each in targets:
            if each in replaced:
                raise InvalidArgumentError(f"bookie {each} is given as lost and with --to; copies need another bookie")
            if each in self.read_only:
                raise InvalidArgumentError(f"--to {each}: the bookie is read-only, so it takes no copies")
            if each not in self.writable:
                what = "the bookie is not registered" if each in self.with_cookie else "the bookie is unknown"
                raise InvalidArgumentError(f"--to {each}: {what}. bkctl bookies lists the writable ones")
        if not self.writable.difference(replaced):
            raise InvalidArgumentError("no other bookie is writable, so none can take the copies: start more bookies")
