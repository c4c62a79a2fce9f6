"""The client of bookies: asyncio in :mod:`client`, for callers that block in :mod:`blocking`.

Programs, logs and the data source come in by these two; the rooms below are theirs.
"""
