"""Batch queries: planner, reader, writer. Only :mod:`bk_spark.datasource.source` comes in here."""
