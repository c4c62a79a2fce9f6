"""What a bookie does after it lost data: it marks its ledgers, says "unknown", and copies what it lacks (BP-46).

:mod:`marking` runs before the bookie serves. :mod:`limbo_check` and :mod:`data_check` are machines without I/O, which
:mod:`data_check_runner` runs while it serves.
"""
