"""Garbage collection: which ledgers the cluster still has, and compaction of entry logs.

The service starts :class:`collector.Collector`; the admin API asks it.
"""
