"""Connections to bookies, for v2, v3 and gRPC, and their pool. The client's other folders use it."""
