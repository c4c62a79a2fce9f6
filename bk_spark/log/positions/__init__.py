"""Where a read of logs starts and ends, and the state of a log that it reads, as users say it. No I/O, no Spark.

``texts`` has the values and parses them, from a text or from a program's value. ``bounds`` turns them into offsets.
"""
