"""Topics of Pulsar as DataFrames: what Spark calls, on top of :mod:`bk_spark.pulsar`.

Planning, splits, limits and offsets are those of logs wherever the rules are the same. Here is what differs: which
topics are read (:mod:`places`), positions (:mod:`positions`, :mod:`offsets`), columns (:mod:`topic_schemas`), tasks
(:mod:`rows`), and what a stream follows (:mod:`followed`, :mod:`stream_planner`).
"""
