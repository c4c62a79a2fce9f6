"""``bkctl log …``: one module for each group of commands. Only the parser of ``bkctl`` comes in here."""
