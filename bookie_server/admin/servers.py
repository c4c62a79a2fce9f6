"""The HTTP servers that a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie_server.admin.access import AdminAccess
from bookie_server.admin.endpoints import heartbeat_routes, metrics_routes
from bookie_server.admin.routes import Routes
from bookie_server.config.config import BookieConfig
from bookie_server.metrics.metrics import MetricsRegistry

if TYPE_CHECKING:
    from bookie_server.admin.server import AdminServer


class CannotListenError(Exception):
    """A port of the admin API cannot be bound."""


def http_servers(
    config: BookieConfig, routes: Routes, registry: MetricsRegistry, access: AdminAccess
) -> list[AdminServer]:
    """Return the server of the admin API, with ``routes`` and metrics, and the one of metrics alone, not started."""
    wanted: list[tuple[int, Routes]] = []
    metrics = metrics_routes(registry) if config.statistics_enabled else {}
    if config.http_enabled:
        wanted.append((config.http_port, {**heartbeat_routes(), **routes, **metrics}))
    if config.statistics_port and metrics:
        wanted.append((config.statistics_port, metrics))
    if not wanted:
        return []
    from bookie_server.admin.server import AdminServer  # aiohttp takes about 10 MB

    return [AdminServer(config.http_host, port, served, access) for port, served in wanted]


async def start_http(server: AdminServer) -> None:
    """Listen. Raises CannotListenError."""
    try:
        await server.start()
    except OSError as error:
        raise CannotListenError(f"httpServerPort or prometheusStatsHttpPort: {error}") from error
