"""All mutations, by layer.

``ledgers``: machines of ledgers, the wire protocol, metadata and their store. ``logs``: the core and the collection of
logs. ``datasource``: Spark's source and sink, and ``bkctl``. ``storage``: a bookie's files. ``tables``: logs as
tables, and with asyncio. ``limbo``: what it says and does after a loss. ``server``: its operations and its front end.
``replication``: repairs, workers and auditors. ``tls``: certificates, handshakes, requests in clear.
``administration``: the admin API. ``access``: roles and logins. ``pulsar``: formats of Pulsar's topics. ``topics``:
reads of Pulsar's topics. ``decoders``: what fuzz tests must find.
"""

from __future__ import annotations

from typing import Final

from tests.mutation.lists import (
    access,
    administration,
    datasource,
    decoders,
    ledgers,
    limbo,
    logs,
    pulsar,
    replication,
    server,
    storage,
    tables,
    tls,
    topics,
)
from tests.mutation.mutation import Mutation

MUTATIONS: Final[tuple[Mutation, ...]] = (
    *ledgers.MUTATIONS,
    *logs.MUTATIONS,
    *datasource.MUTATIONS,
    *storage.MUTATIONS,
    *limbo.MUTATIONS,
    *server.MUTATIONS,
    *replication.MUTATIONS,
    *decoders.MUTATIONS,
    *tables.MUTATIONS,
    *tls.MUTATIONS,
    *topics.MUTATIONS,
    *administration.MUTATIONS,
    *access.MUTATIONS,
    *pulsar.MUTATIONS,
)
