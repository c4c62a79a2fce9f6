"""The paths of ledgers in ZooKeeper, and the LAYOUT znode that selects them. Source: compatibility.md §3.2, §3.3.

================ ===================================================== =========================
ledger manager   path of ledger 7 and of ledger 2**40 + 7              LAYOUT's class
================ ===================================================== =========================
flat             L0000000007 and L1099511627783                        FlatLedgerManagerFactory
hierarchical     00/0000/L0007 and 000/0001/0995/1162/L7783            HierarchicalLedger…
longhierarchical 000/0000/0000/0000/L0007 and 000/0001/0995/1162/L7783 LongHierarchicalLedger…
================ ===================================================== =========================

LAYOUT holds ``2 LF <factory class>:1``.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError

_PACKAGE: Final = "org.apache.bookkeeper.meta."
_LAYOUT: Final = re.compile(r"(\d+)\n(.+):(\d+)\s*")
#: The first id for which the hierarchical manager uses the long form.
FIRST_LONG_ID: Final = 2**31 - 1
MAX_LEDGER_ID: Final = 2**63 - 1


class LedgerManager(enum.Enum):
    """How ledger ids become paths. The value is the name in metadata service URIs."""

    FLAT = "flat"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"

    def ledger_path(self, root: str, ledger_id: int) -> str:
        """Return the path of the ledger's znode."""
        if not 0 <= ledger_id <= MAX_LEDGER_ID:
            raise InvalidArgumentError(f"ledger id {ledger_id} is not within 0..{MAX_LEDGER_ID}")
        if self is LedgerManager.FLAT:
            return f"{root}/L{ledger_id:010d}"
        if self is LedgerManager.HIERARCHICAL and ledger_id < FIRST_LONG_ID:
            digits = f"{ledger_id:010d}"
            return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
        digits = f"{ledger_id:019d}"
        return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"

    def is_leaf(self, digits: str) -> bool:
        """Return whether the children of the znode whose path spells ``digits`` of an id are ledgers."""
        return len(digits) in ((0,) if self is LedgerManager.FLAT else (6, 15))

    def is_branch(self, digits: str, name: str) -> bool:
        """Return whether the child ``name`` of a znode that is not a leaf leads to ledgers."""
        widths = (4,) if digits else (3,) if self is LedgerManager.LONG_HIERARCHICAL else (2, 3)
        return len(name) in widths and _is_digits(name)

    def is_ledger(self, digits: str, name: str) -> bool:
        """Return whether the child ``name`` of a leaf is a ledger."""
        wide = 10 <= len(name) - 1 <= 19 if self is LedgerManager.FLAT else len(name) - 1 == 4
        return wide and name[0] == "L" and _is_digits(name[1:])

    @property
    def factory_class(self) -> str:
        """The Java class that LAYOUT names."""
        return _PACKAGE + _FACTORIES[self]

    @property
    def layout(self) -> bytes:
        """Return the content of LAYOUT."""
        return f"2\n{self.factory_class}:1".encode()


_FACTORIES: Final = {
    LedgerManager.FLAT: "FlatLedgerManagerFactory",
    LedgerManager.HIERARCHICAL: "HierarchicalLedgerManagerFactory",
    LedgerManager.LONG_HIERARCHICAL: "LongHierarchicalLedgerManagerFactory",
}


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def parse_layout(data: bytes) -> LedgerManager:
    """Return the ledger manager that a LAYOUT znode names. Raises MetadataFormatError."""
    match = _LAYOUT.fullmatch(data.decode("utf-8", "replace"))
    if match is None or match[1] != "2" or match[3] != "1":
        raise MetadataFormatError("LAYOUT is not of the form '2 LF <factory class>:1'; this release knows no other")
    for manager, factory in _FACTORIES.items():
        if match[2] == _PACKAGE + factory:
            return manager
    raise MetadataFormatError(
        f"LAYOUT names ledger manager {match[2][:80]}; this release knows {', '.join(_FACTORIES.values())}"
    )
