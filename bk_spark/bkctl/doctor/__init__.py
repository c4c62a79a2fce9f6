"""``bkctl doctor``: checks this machine and the cluster. Imported only by the parser of ``bkctl``."""
