"""TCP connections to bookies, for v2 and v3, and the pool of them. The other rooms of the client come in here."""
