"""The endpoints of self-healing: Apache's paths under ``autorecovery/`` (compatibility.md §7.5).

They work on the znodes of the cluster, so any bookie answers them, whether it repairs ledgers itself or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeVar

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.admin.routes import HttpError, Request, Response, Routes, json_response, text_response

_AUTO_RECOVERY: Final = "/api/v1/autorecovery"
#: Ledgers that a list names, at most. Some 3,500 are read in a second.
_MAX_LISTED: Final = 50_000
_T = TypeVar("_T")


def replication_routes(zookeeper: Callable[[], ZooKeeper | None], root: str) -> Routes:
    """Return the endpoints.

    Parameters
    ----------
    zookeeper
        Returns the session to use, or None while there is none.
    root
        The root of the cluster's znodes.
    """
    endpoints = _Endpoints(zookeeper, root)
    return {
        f"{_AUTO_RECOVERY}/status": {"GET": endpoints.status, "PUT": endpoints.set_status},
        f"{_AUTO_RECOVERY}/who_is_auditor": {"GET": endpoints.auditor},
        f"{_AUTO_RECOVERY}/list_under_replicated_ledger": {"GET": endpoints.marks},
        f"{_AUTO_RECOVERY}/trigger_audit": {"PUT": endpoints.trigger_audit},
        f"{_AUTO_RECOVERY}/lost_bookie_recovery_delay": {"GET": endpoints.delay, "PUT": endpoints.set_delay},
    }


class _Endpoints:
    def __init__(self, zookeeper: Callable[[], ZooKeeper | None], root: str) -> None:
        self._zookeeper = zookeeper
        self._root = root

    async def status(self, _: Request) -> Response:
        return json_response({"enabled": not await self._call(ReplicationSwitches, ReplicationSwitches.is_disabled)})

    async def set_status(self, request: Request) -> Response:
        enabled = request.parameters.get("enabled")
        if enabled not in ("true", "false"):
            raise HttpError(HTTPStatus.BAD_REQUEST, "the parameter enabled must be true or false")
        switch = ReplicationSwitches.enable if enabled == "true" else ReplicationSwitches.disable
        await self._call(ReplicationSwitches, switch)
        return await self.status(request)

    async def auditor(self, _: Request) -> Response:
        vote = await self._call(AuditorElection, AuditorElection.auditor)
        if vote is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "no auditor is elected")
        return text_response(f"Auditor: {vote.bookie_id}")

    async def marks(self, request: Request) -> Response:
        missing = request.parameters.get("missingreplica") or None
        excluded = request.parameters.get("excludingmissingreplica") or None

        def read(store: UnderReplicationStore) -> dict[int, list[str]]:
            found: dict[int, list[str]] = {}
            for page in store.marks():
                for ledger_id, mark in page.items():
                    if (missing is None or missing in mark.missing) and excluded not in mark.missing:
                        found[ledger_id] = list(mark.missing)
                if len(found) > _MAX_LISTED:
                    raise HttpError(
                        HTTPStatus.CONFLICT,
                        f"more than {_MAX_LISTED} ledgers are under-replicated: use bkctl listunderreplicated",
                    )
            return found

        found = await self._call(UnderReplicationStore, read)
        return json_response(found if request.parameters.get("printmissingreplica") == "true" else list(found))

    async def trigger_audit(self, _: Request) -> Response:
        await self._prepared()
        await self._call(ReplicationSwitches, ReplicationSwitches.trigger_audit)
        return text_response("Success trigger audit.")

    async def delay(self, _: Request) -> Response:
        delay = await self._call(ReplicationSwitches, ReplicationSwitches.recovery_delay)
        if delay is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "lostBookieRecoveryDelay was never set")
        return text_response(f"lostBookieRecoveryDelay value: {delay.seconds}")

    async def set_delay(self, request: Request) -> Response:
        seconds = request.json_object().get("delay_seconds")
        if not isinstance(seconds, int) or isinstance(seconds, bool):
            raise HttpError(HTTPStatus.BAD_REQUEST, "delay_seconds must be a whole number")
        await self._prepared()
        try:
            await self._call(ReplicationSwitches, lambda switches: switches.set_recovery_delay(seconds))
        except InvalidArgumentError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None
        return text_response(f"Success set lostBookieRecoveryDelay to {seconds}")

    async def _prepared(self) -> None:
        """Create the znodes above those that are written, if no auditor ever ran here."""
        await self._call(UnderReplicationStore, UnderReplicationStore.prepare)

    async def _call(self, make: Callable[[ZooKeeper, str], Any], use: Callable[[Any], _T]) -> _T:
        """Use what ``make`` returns for the session, in a thread."""
        zookeeper = self._zookeeper()
        if zookeeper is None:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "there is no session with ZooKeeper; try again")
        return await asyncio.to_thread(use, make(zookeeper, self._root))
