"""How readers of entries proceed: over a range of offsets, or along with a growing log, whose tail may be open.

Only the readers that run these machines (blocking, asyncio and the simulator's) import this package.
"""
