"""The PySpark data source ``bookkeeper``. The only package that imports pyspark.

Spark enters through :mod:`source`. Modules here are shared by reading and writing; the rest is in subpackages.
"""
