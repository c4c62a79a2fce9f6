"""``bkctl``: inspect and maintain a cluster from the command line: bookies, replication, ledgers and logs.

See docs/bkctl.md.
"""

from bk_spark.bkctl.command_line.command import main

__all__ = ["main"]
