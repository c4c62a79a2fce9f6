"""The configuration of a bookie: a ``.conf`` file with Apache's keys, read by one table of settings.

The start of the process uses it; the other parts get a :class:`~bookie_server.config.config.BookieConfig`.
"""
