"""Garbage collection: which ledgers the cluster still has, and compaction of entry logs.

The service starts :class:`garbage_collector.GarbageCollector`; the admin API asks it.
"""
