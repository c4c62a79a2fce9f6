"""Shared by batch and streaming writes: tasks write rows to ledgers, and the driver commits their messages.

Imported only by :mod:`bk_spark.datasource.batch` and :mod:`bk_spark.datasource.stream`.
"""
