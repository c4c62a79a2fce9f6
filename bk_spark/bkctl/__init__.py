"""``bkctl``: look at bookies, ledgers and logs of a cluster from the command line, and look after logs.

What it can do: docs/bkctl.md.
"""

from bk_spark.bkctl.command import main

__all__ = ["main"]
