"""Generated from ``bookkeeper_protocol.proto`` by ``make proto``. Only ``protocol.wire`` and the v3 front end of
the bookie use it.
"""
