"""Spark-native reading and writing of Apache BookKeeper ledgers and logs."""

import logging

# A library leaves it to the program where its log goes.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0.dev0"
