"""What removes: truncation, retention, the reaper of unused ledgers, deletion of a log.

:class:`bk_spark.log.log.Log` and :class:`bk_spark.log.store.LogStore` come in here.
"""
