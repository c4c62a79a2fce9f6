"""``python -m bookie_server.config`` prints docs/bookie-config.md."""

from bookie_server.config.page import reference

print(reference(), end="")
