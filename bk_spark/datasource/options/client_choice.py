"""The settings of the client that a read or write uses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class ClientChoice:
    """The file with settings, ``conf``, and the ``transport``, which replaces the file's. None: not given."""

    conf: str | None = None
    transport: str | None = None

    def config(self) -> ClientConfig:
        """Return the settings. Raises InvalidArgumentError, which names the option."""
        found = ClientConfig()
        if self.conf is not None:
            try:
                found = ClientConfig.from_file(self.conf)
            except InvalidArgumentError as error:
                remedy = "the file must be readable where the driver and the executors run"
                raise InvalidArgumentError(f"option clientConf: {error}; {remedy}") from error
        return found if self.transport is None else replace(found, transport=self.transport)
