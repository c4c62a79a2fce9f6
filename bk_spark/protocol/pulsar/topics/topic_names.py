"""Names of Pulsar's topics and namespaces, and their znodes. Source: docs/design/pulsar.md §1.1 and §1.2.

A topic is ``persistent://tenant/namespace/local``. Its znode has the local name as Java's URLEncoder writes it, without
the two slashes: ``/managed-ledgers/tenant/namespace/persistent/local``. A partition is a topic of its own, whose local
name ends in ``-partition-`` and its number, without padding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from bk_spark.protocol.errors import InvalidArgumentError

MANAGED_LEDGERS: Final = "/managed-ledgers"
PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"
SCHEMAS: Final = "/schemas"
POLICIES: Final = "/admin/policies"
_DOMAIN: Final = "persistent"
_PARTITION: Final = re.compile(r"(.*)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_MAX_NAME: Final = 4096
_FORMS: Final = (
    "a topic is persistent://tenant/namespace/name, tenant/namespace/name, or name of namespace public/default"
)
#: Topics that Pulsar and its plug-ins keep for themselves.
_SYSTEM_STARTS: Final = ("__change_events", "__transaction_buffer_snapshot", "__consumer_offsets")
_SYSTEM_END: Final = "__transaction_pending_ack"
_SYSTEM_TENANT: Final = "pulsar"


def encode_local(local: str) -> str:
    """Return a local name as Java's URLEncoder writes it."""
    return quote_plus(local, safe="*").replace("~", "%7E")


def decode_local(node: str) -> str:
    """Return the local name of a znode's name."""
    return unquote_plus(node)


@dataclass(frozen=True, slots=True)
class NamespaceName:
    """A namespace of a tenant.

    Parameters
    ----------
    tenant
        The tenant.
    namespace
        The name within the tenant.
    """

    tenant: str
    namespace: str

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """Parse ``tenant/namespace``. Raises InvalidArgumentError."""
        parts = text.split("/")
        if len(parts) != 2 or not all(map(_is_part, parts)):
            raise InvalidArgumentError(f"{text[:200]!r} is not a Pulsar namespace: write tenant/namespace")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @property
    def managed_ledgers_path(self) -> str:
        """The znode whose children are the namespace's topics, each partition on its own."""
        return f"{MANAGED_LEDGERS}/{self}/{_DOMAIN}"

    @property
    def partitioned_topics_path(self) -> str:
        """The znode whose children are the namespace's partitioned topics, in the configuration store."""
        return f"{PARTITIONED_TOPICS}/{self}/{_DOMAIN}"

    @property
    def policies_path(self) -> str:
        """The znode that exists if the namespace does, in the configuration store."""
        return f"{POLICIES}/{self}"

    def topic(self, node: str) -> TopicName:
        """Return the topic whose znode has this name."""
        return TopicName(self.tenant, self.namespace, decode_local(node), node)


@dataclass(frozen=True, slots=True)
class TopicName:
    """A persistent topic, or one partition of a partitioned topic.

    Parameters
    ----------
    tenant, namespace
        Where it is.
    local
        Its name there.
    node
        The name of its znode. Nodes keep the name that they were found with, however it was encoded.
    """

    tenant: str
    namespace: str
    local: str
    node: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse a name as users write it.

        Parameters
        ----------
        text
            ``persistent://tenant/namespace/local``, ``tenant/namespace/local``, or ``local`` in ``public/default``.

        Raises
        ------
        InvalidArgumentError
            If it is not the name of a persistent topic.
        """
        name, shown = text.strip(), text[:200]
        domain, separator, rest = name.partition("://")
        if separator and domain == "non-persistent":
            raise InvalidArgumentError(
                f"{shown!r} is not persistent: Pulsar keeps its messages in memory alone, there are no ledgers"
            )
        if separator and domain != _DOMAIN:
            raise InvalidArgumentError(f"{shown!r} is not a Pulsar topic: {_FORMS}")
        parts = (rest if separator else name).split("/", 2)
        if not separator and len(parts) == 1:
            parts = ["public", "default", name]
        if len(parts) == 3 and parts[2].count("/") == 1:
            raise InvalidArgumentError(
                f"{shown!r} names a cluster between tenant and namespace, as old releases of Pulsar did, which is not "
                f"supported: {_FORMS}"
            )
        if len(parts) != 3 or not (_is_part(parts[0]) and _is_part(parts[1]) and parts[2]) or len(name) > _MAX_NAME:
            raise InvalidArgumentError(f"{shown!r} is not a Pulsar topic: {_FORMS}")
        tenant, namespace, local = parts
        if "/" in local:
            raise InvalidArgumentError(f"{shown!r} is not a Pulsar topic: {_FORMS}")
        return cls(tenant, namespace, local, encode_local(local))

    def __str__(self) -> str:
        return self.full

    @property
    def full(self) -> str:
        """The name with its domain, as Pulsar shows it."""
        return f"{_DOMAIN}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def namespace_name(self) -> NamespaceName:
        """The namespace."""
        return NamespaceName(self.tenant, self.namespace)

    @property
    def managed_ledger_path(self) -> str:
        """The znode with the list of ledgers."""
        return f"{self.namespace_name.managed_ledgers_path}/{self.node}"

    @property
    def partitioned_path(self) -> str:
        """The znode with the number of partitions, in the configuration store."""
        return f"{self.namespace_name.partitioned_topics_path}/{self.node}"

    @property
    def schema_path(self) -> str:
        """The znode with the versions of the schema. All partitions share it."""
        return f"{SCHEMAS}/{self.namespace_name}/{encode_local(self.base_local)}"

    @property
    def base_local(self) -> str:
        """The local name without the end that makes it a partition's."""
        found = _PARTITION.fullmatch(self.local)
        return found[1] if found else self.local

    @property
    def partition_index(self) -> int | None:
        """The number of the partition by the name, or None. A topic that is not partitioned can have such a name."""
        found = _PARTITION.fullmatch(self.local)
        return int(found[2]) if found else None

    @property
    def is_system(self) -> bool:
        """Whether Pulsar, or a plug-in of it, keeps the topic for itself."""
        local = self.base_local
        return self.tenant == _SYSTEM_TENANT or local.startswith(_SYSTEM_STARTS) or local.endswith(_SYSTEM_END)

    def partition(self, index: int) -> TopicName:
        """Return the topic of one partition."""
        local = f"{self.local}-partition-{index}"
        return replace(self, local=local, node=encode_local(local))


def _is_part(text: str) -> bool:
    """Whether ``text`` can be a tenant or namespace: Pulsar's NamedEntity, and no part of another path."""
    return re.fullmatch(r"[-=:.\w]+", text, re.ASCII) is not None and text not in (".", "..")
