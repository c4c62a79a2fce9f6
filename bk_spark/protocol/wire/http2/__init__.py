"""A client's side of gRPC over HTTP/2. No I/O.

``frames`` has the layout of frames, ``headers`` their compression, ``settings`` what each side announces,
``calls`` the messages and the end of one call, ``connection`` the rest: calls, windows, and where received bytes go.
"""
