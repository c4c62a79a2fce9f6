"""The identity of this bookie: cookies, its cluster, its registration, the locks on its directories, and whether it
can read what is in them. Process startup imports from here.
"""
