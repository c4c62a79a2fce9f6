"""The front end for Apache's wire protocols v2 and v3. The service starts :class:`server.NativeServer`."""
