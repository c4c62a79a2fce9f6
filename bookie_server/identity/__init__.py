"""Who this bookie is: cookies, its cluster, its registration, the locks on its directories. The start of the
process comes in here.
"""
