"""``bkctl``: inspect bookies, ledgers and logs of a cluster from the command line, and maintain logs.

See docs/bkctl.md.
"""

from bk_spark.bkctl.command import main

__all__ = ["main"]
