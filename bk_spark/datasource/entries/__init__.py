"""Entries as rows of Spark's tasks, and schemas as Spark has them. Entry formats are in :mod:`bk_spark.log.entries`."""
