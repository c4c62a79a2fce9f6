"""``bkctl doctor``: checks of this machine and of the cluster. Only the parser of ``bkctl`` comes in here."""
