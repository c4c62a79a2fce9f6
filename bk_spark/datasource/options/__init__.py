"""Options of reads and writes: their table, its validation, and the page of documentation.

All parts of the data source use :class:`~bk_spark.datasource.options.options.SourceOptions`.
"""
