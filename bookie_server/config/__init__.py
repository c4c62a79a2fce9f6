"""The configuration of a bookie: a ``.conf`` file with Apache's keys, read according to one table of settings.

Process startup uses this package; the other parts get a :class:`~bookie_server.config.config.BookieConfig`.
"""
