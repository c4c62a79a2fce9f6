"""A client's side of gRPC over HTTP/2. No I/O.

``frames`` has the layout of frames, ``calls`` the messages and the end of one call, ``connection`` the rest: calls,
windows, settings, and where received bytes go.
"""
