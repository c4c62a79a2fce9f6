"""``bkctl log …``: one module per group of commands. Imported only by the parser of ``bkctl``."""
