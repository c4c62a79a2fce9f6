"""Generated from the ``.proto`` files here by ``make proto``. Imported only by ``log.formats`` and the index."""
