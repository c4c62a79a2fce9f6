"""What batch and streaming writes share: tasks write rows to ledgers, and the driver commits their messages.

Only :mod:`bk_spark.datasource.batch` and :mod:`bk_spark.datasource.stream` come in here.
"""
