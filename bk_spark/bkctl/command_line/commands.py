"""The commands by module: a module is imported when the command line names one of its commands.

Modules bring the client along, whose import takes half a second. ``bkctl --help`` and ``--version`` need none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any, Final

#: For each module the names of its commands, and what ``bkctl --help`` says about them until the module is imported.
_COMMANDS: Final = {
    "doctor.commands": {
        "doctor": "find what keeps Spark from reading and writing on this machine, and say what to do",
    },
    "bookies": {
        "bookies": "list all bookies with their state, rack and disks",
        "listbookies": "list all bookies with their state, rack and disks",
        "bookieinfo": "free and total disk space of the registered bookies and of all of them together",
    },
    "top": {"top": "the whole cluster at a glance, refreshed until Ctrl-C"},
    "clusters": {
        "initnewcluster": "create the znodes of a new cluster at --metadata-service-uri; an existing one stays",
        "whatisinstanceid": "print the id of the cluster",
        "cookie": "the identity of one bookie",
    },
    "replication": {
        "autorecovery": "whether lost copies are made again",
        "queryautorecoverystatus": "whether lost copies are made again, the auditor, and the ledgers marked and under "
        "repair",
        "listunderreplicated": "list the ledgers that are marked as under-replicated",
        "whoisauditor": "print the bookie whose auditor is elected",
        "triggeraudit": "let the auditor look for lost bookies now",
        "forceauditchecks": "let the next auditor that starts do checks at once, instead of when they are due",
        "forceautorecoverychecks": "let the next auditor that starts do checks at once, instead of when they are due",
        "lostbookierecoverydelay": "how long the auditor waits for a lost bookie to return",
    },
    "recover": {"recover": "make the copies of lost bookies again on other bookies, now and without an auditor"},
    "decommission": {
        "decommission": "have all copies of a stopped bookie made again, and wait until no ledger names it",
    },
    "ledgers": {
        "ledger": "one ledger",
        "ledgermetadata": "the metadata of a ledger",
        "readledger": "write the entries of a ledger to stdout, each followed by a line feed",
        "listledgers": "the ids of all ledgers, ascending",
        "deleteledger": "delete ledgers with all their entries",
    },
    "simpletest": {
        "simpletest": "test the cluster by writing and reading a temporary ledger of 1 KB entries",
        "bookiesanity": "test one bookie by writing and reading a temporary ledger of 1 KB entries on it alone",
    },
    "logs.commands": {"log": "logs"},
    "offline.commands": {
        "listfilesondisc": "offline: list a bookie's journals, entry logs and index files",
        "lastmark": "offline: print from where a bookie replays its journals, by ledger directory",
        "readlog": "offline: print the entries of an entry log: ledger, entry, offset in the file, bytes",
        "readlogmetadata": "offline: print the ledgers of an entry log with the bytes of each",
        "readjournal": "offline: print the records of one journal, or of all: kind, ledger, entry, offset, bytes",
        "localconsistencycheck": "offline: check that every entry in the index is in its entry log, with its ids and a "
        "right digest",
    },
    "completion": {"completion": "print a shell script that completes bkctl's commands and options"},
}


def add_commands(groups: Any, words: Collection[str] | None) -> None:
    """Add all commands. Those of modules that have none in ``words`` can only be listed; None imports all modules."""
    for module, helps in _COMMANDS.items():
        if words is None or not helps.keys().isdisjoint(words):
            importlib.import_module(f"bk_spark.bkctl.{module}").add_commands(groups)
        else:
            for name, meaning in helps.items():
                groups.add_parser(name, help=meaning)
