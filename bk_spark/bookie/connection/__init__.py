"""TCP connections to bookies, for v2 and v3, and their pool. The client's other folders use it."""
