"""Spark-native reading and writing of Apache BookKeeper ledgers and logs."""

__version__ = "0.1.0.dev0"
