"""The client of bookies: :mod:`client` for asyncio, :mod:`blocking` for callers that block.

Programs, logs and the data source use these two. The folders below are their parts.
"""
