"""How a read or write reaches the cluster: by which settings of the client."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class ClientChoice:
    """``conf``: a file with settings. ``transport``: instead of the one in the file. None: not given."""

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
