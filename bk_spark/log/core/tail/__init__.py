"""Log writers: how one opens, rolls, seals and loses the open tail of a log.

Commits and appended ledgers import this package to seal a tail that they find open; drivers import it to run a writer.
"""
