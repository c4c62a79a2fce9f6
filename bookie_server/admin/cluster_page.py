"""The page of the cluster at ``/``, and the JSON that it shows.

Bookies, ledgers, repairs and logs are collected when somebody looks, in a thread of its own. An answer serves everybody
for some seconds. So ten open pages cost one collection, and a page that nobody looks at costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.errors import BookKeeperError
from bookie_server.admin.access import client_context
from bookie_server.admin.routes import JSON_TYPE, HttpError, Request, Response, Routes
from bookie_server.config.config import BookieConfig

if TYPE_CHECKING:
    from bk_spark.bookie.placement.racks import Racks
    from bk_spark.overview.http_call import HttpCaller
    from bk_spark.overview.overview import Overview

#: How long an answer is given to others, too.
_SERVED_S: Final = 4.0
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/cluster.css": ("cluster.css", "text/css; charset=utf-8"),
    "/cluster.js": ("cluster.js", "text/javascript; charset=utf-8"),
}
#: Names of logs and bookies are foreign text. The page shows them as text, and even if it did not, nothing would run.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
OVERVIEW_PATH: Final = "/api/v1/cluster/overview"


class ClusterPage:
    """Serves the page. Belongs to the event loop.

    Parameters
    ----------
    config
        The bookie's configuration.
    zookeeper
        Its session.
    """

    def __init__(self, config: BookieConfig, zookeeper: ZooKeeper) -> None:
        self._config = config
        self._zookeeper = zookeeper
        self._overview: Overview | None = None
        self._collection: asyncio.Future[bytes] | None = None
        #: When the collection ended.
        self._collected_s = 0.0

    def routes(self) -> Routes:
        """Return the endpoints."""
        files = {path: {"GET": _file(name, kind)} for path, (name, kind) in _FILES.items()}
        return {**files, OVERVIEW_PATH: {"GET": self._answer}}

    async def _answer(self, _: Request) -> Response:
        return Response(await self.overview(), JSON_TYPE, headers=_HEADERS)

    async def overview(self) -> bytes:
        """Return the cluster as JSON. Raises HttpError."""
        latest = self._collection
        if latest is None or (latest.done() and not self._serves(latest)):
            latest = self._begin()
            latest.add_done_callback(self._note)
            self._collection = latest
        try:
            # Others wait for the same collection.
            return await shielded(latest)
        except BookKeeperError as error:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, error.message) from None

    def _begin(self) -> asyncio.Future[bytes]:
        """Begin a collection; there is one at a time. Not in an executor: at exit the interpreter would wait for it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()

        def deliver(found: bytes | Exception) -> None:
            if isinstance(found, bytes):
                answer.set_result(found)
            else:
                answer.set_exception(found)

        def work() -> None:
            try:
                found: bytes | Exception = self._collect()
            except Exception as error:
                found = error
            # The loop may be closed meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(deliver, found)

        threading.Thread(target=work, name="overview", daemon=True).start()
        return answer

    def _serves(self, latest: asyncio.Future[bytes]) -> bool:
        failed = latest.cancelled() or latest.exception() is not None
        return not failed and time.monotonic() - self._collected_s < _SERVED_S

    def _note(self, _: asyncio.Future[bytes]) -> None:
        self._collected_s = time.monotonic()

    def _collect(self) -> bytes:
        if self._overview is None:
            # Imported when somebody looks.
            from bk_spark.overview.overview import Overview

            config = self._config
            self._overview = Overview(
                self._zookeeper, config.metadata_service_uri, self._racks, self._caller, config.log_root
            )
        return json.dumps(self._overview.collect()).encode()

    def _racks(self, address_of: Callable[[str], tuple[str, int]]) -> Racks:
        from bk_spark.bookie.placement.racks import Racks, rack_sources

        return Racks(rack_sources(self._zookeeper, self._config.client_config()), address_of)

    def _caller(self) -> HttpCaller:
        """Return how other bookies are asked: with the certificates and the token for reads of this one."""
        from bk_spark.overview.http_call import caller, token_in

        path, tls = self._config.http_read_token_file, None
        if self._config.http_tls_enabled:
            contexts = client_context(self._config)
            tls = ssl.create_default_context() if contexts is None else contexts
        return caller(tls, token_in(path, "httpServerReadTokenFile") if path else "")


def _file(name: str, kind: str) -> Callable[[Request], Any]:
    async def answer(_: Request) -> Response:
        content = resources.files("bookie_server.admin").joinpath("static", name).read_bytes()
        return Response(content, kind, headers=_HEADERS)

    return answer
