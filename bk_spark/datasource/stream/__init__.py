"""Streaming queries: offsets, admission limits, planner, reader, writer.

Imported only by :mod:`bk_spark.datasource.source`.
"""
