"""Generated from the ``.proto`` files here by ``make proto``. Only ``log.formats`` and the index come in here."""
