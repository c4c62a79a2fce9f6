"""The command line itself: finds a command and runs it. Also what all commands share: arguments, output, exit status.

:mod:`bk_spark.bkctl` enters at :mod:`command`; each command imports :mod:`common`.
"""
