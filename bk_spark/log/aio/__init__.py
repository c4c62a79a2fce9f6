"""Logs with asyncio: a log, its reader, its writer and its scans. Their decisions are those of the blocking ones.

Readers run the machines of :mod:`bk_spark.log.core.readers` on the caller's event loop. What has no asyncio inside,
such as ZooKeeper, commits and log writers, runs in threads.
"""
