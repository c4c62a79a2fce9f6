"""The HTTP API for operators. The service starts it."""
