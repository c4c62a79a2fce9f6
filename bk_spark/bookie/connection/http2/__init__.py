"""Calls of gRPC over sockets of asyncio: ``channel`` has connections and what waits for them, ``line`` is one of them,
``call`` is what a caller holds. What is sent and received is decided in ``protocol/wire/http2``.
"""
