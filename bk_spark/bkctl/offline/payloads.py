"""How the offline commands show the payloads of stored entries."""

from __future__ import annotations

import argparse
import base64
import json
from dataclasses import dataclass
from typing import Any

from bk_spark.bkctl.command_line.common import password, printable_json
from bookie_server.offline.digests import DigestFinder, payload_of
from bookie_server.offline.entry_logs import last_add_confirmed


@dataclass(frozen=True, slots=True)
class Payloads:
    """Shows entries with their last add confirmed, digest and payload. With ``as_hex``, no payload is shown as text."""

    finder: DigestFinder
    as_hex: bool

    @classmethod
    def of(cls, options: argparse.Namespace) -> Payloads | None:
        """Return None if the command line does not ask for payloads."""
        if not (options.msg or options.hex):
            return None
        return cls(digest_finder(options), options.hex)

    def shown(self, entry: memoryview) -> tuple[dict[str, Any], str]:
        """Return the fields of the JSON record, and the columns of the text, separated by tabs."""
        digest_type = self.finder.find(entry)
        payload = bytes(payload_of(entry, digest_type))
        lac = last_add_confirmed(entry)
        record: dict[str, Any] = {"last_add_confirmed": lac, "digest": digest_type.name if digest_type else None}
        text = None
        if not self.as_hex:
            try:
                text = payload.decode()
            except UnicodeDecodeError:
                record["value_base64"] = base64.b64encode(payload).decode()
            else:
                record["value"] = text
        else:
            record["value_hex"] = payload.hex()
        columns = ("" if lac is None else lac, record["digest"] or "unknown")
        shown = payload.hex() if text is None else printable_json(json.dumps(text, ensure_ascii=False))
        return record, "\t".join(map(str, (*columns, shown)))


def digest_finder(options: argparse.Namespace) -> DigestFinder:
    """Return a finder, which also knows HMAC if the command line has the password.

    Raises InvalidArgumentError if the password's file cannot be read.
    """
    return DigestFinder(None if options.password_file is None else password(options))
