"""Garbage collection: removal of ledgers that the cluster no longer has, and compaction of entry logs.

The service starts :class:`garbage_collector.GarbageCollector`, and the admin API queries it.
"""
