"""The PySpark data source ``bookkeeper``. The only package that imports pyspark.

Spark comes in by :mod:`source`; what reading and writing share is here, the rest in rooms.
"""
