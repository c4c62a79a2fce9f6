"""The endpoints of self-healing: Apache's paths under ``autorecovery/`` (compatibility.md §7.5).

They work on the znodes of the cluster, so any bookie answers them, whether it repairs ledgers itself or not.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bookie_server.admin.replication_operations import ReplicationOperations
from bookie_server.admin.routes import HttpError, Request, Response, Routes, json_response, text_response

_AUTO_RECOVERY: Final = "/api/v1/autorecovery"


def replication_routes(zookeeper: Callable[[], ZooKeeper | None], root: str) -> Routes:
    """Return the endpoints.

    Parameters
    ----------
    zookeeper
        Returns the session to use, or None while there is none.
    root
        The root of the cluster's znodes.
    """
    endpoints = _Endpoints(ReplicationOperations(zookeeper, root))
    return {
        f"{_AUTO_RECOVERY}/status": {"GET": endpoints.status, "PUT": endpoints.set_status},
        f"{_AUTO_RECOVERY}/who_is_auditor": {"GET": endpoints.auditor},
        f"{_AUTO_RECOVERY}/list_under_replicated_ledger": {"GET": endpoints.marks},
        f"{_AUTO_RECOVERY}/trigger_audit": {"PUT": endpoints.trigger_audit},
        f"{_AUTO_RECOVERY}/lost_bookie_recovery_delay": {"GET": endpoints.delay, "PUT": endpoints.set_delay},
    }


class _Endpoints:
    def __init__(self, operations: ReplicationOperations) -> None:
        self._operations = operations

    async def status(self, _: Request) -> Response:
        return json_response({"enabled": await self._operations.is_enabled()})

    async def set_status(self, request: Request) -> Response:
        enabled = request.parameters.get("enabled")
        if enabled not in ("true", "false"):
            raise HttpError(HTTPStatus.BAD_REQUEST, "the parameter enabled must be true or false")
        await self._operations.set_enabled(enabled == "true")
        return await self.status(request)

    async def auditor(self, _: Request) -> Response:
        bookie_id = await self._operations.auditor()
        if bookie_id is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "no auditor is elected")
        return text_response(f"Auditor: {bookie_id or None}")

    async def marks(self, request: Request) -> Response:
        missing = request.parameters.get("missingreplica") or None
        excluded = request.parameters.get("excludingmissingreplica") or None
        found = await self._operations.marks(missing, excluded)
        return json_response(found if request.parameters.get("printmissingreplica") == "true" else list(found))

    async def trigger_audit(self, _: Request) -> Response:
        await self._operations.trigger_audit()
        return text_response("Success trigger audit.")

    async def delay(self, _: Request) -> Response:
        seconds = await self._operations.delay_s()
        if seconds is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "lostBookieRecoveryDelay was never set")
        return text_response(f"lostBookieRecoveryDelay value: {seconds}")

    async def set_delay(self, request: Request) -> Response:
        seconds = request.json_object('{"delay_seconds": 60}').get("delay_seconds")
        if not isinstance(seconds, int) or isinstance(seconds, bool):
            raise HttpError(HTTPStatus.BAD_REQUEST, "delay_seconds must be a whole number")
        await self._operations.set_delay(seconds)
        return text_response(f"Success set lostBookieRecoveryDelay to {seconds}")
