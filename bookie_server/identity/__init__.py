"""The identity of this bookie: cookies, its cluster, its registration, the locks on its directories. Process startup
imports from here.
"""
