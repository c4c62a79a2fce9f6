"""Which entry logs journals name, where directories of entry logs were lost."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal_reader import JournalReader
from bookie_server.storage.journal.located_record import LocatedRecord

_LOG: Final = logging.getLogger(__name__)


def highest_named_log(directories: Sequence[str]) -> int:
    """The highest id of an entry log that a journal in ``directories`` (``current`` ones) says to hold large entries;
    -1 if none does. What is damaged is left to the replay, which knows whether it is needed. Raises OSError."""
    highest = -1
    for directory in directories:
        for journal_id in journal.journal_ids(directory):
            path = os.path.join(directory, journal.file_name(journal_id))
            try:
                for item in JournalReader(path).items():
                    if isinstance(item, LocatedRecord):
                        highest = max(highest, int(item.locations.max()) >> OFFSET_BITS)
            except CorruptFileError as error:
                _LOG.warning("entry logs that a damaged journal names cannot all be found: %s", error)
    return highest
