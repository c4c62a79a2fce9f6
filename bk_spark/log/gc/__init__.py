"""Everything that removes data: truncation, retention, the reaper of unused ledgers, deletion of a log.

Entered from :class:`bk_spark.log.log.Log` and :class:`bk_spark.log.store.LogStore`.
"""
