"""Self-healing: the election, the auditor and the worker's loop, all as machines without I/O.

The daemon runs them on the event loop; ``bookie_server/service.py`` and the ``bookie-server`` command start the daemon.
"""
