"""Options of reads and writes: one table, their values, the page of documentation. All of the data source comes in
here.
"""
