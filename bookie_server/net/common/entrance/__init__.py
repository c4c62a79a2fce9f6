"""How peers come in, from ``accept`` to their first request, in clear or with TLS, and what those cost who say nothing.

The native front end and the admin port come in here.
"""
