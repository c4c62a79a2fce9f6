"""Batch queries: planner, reader, writer. Imported only by :mod:`bk_spark.datasource.source`."""
