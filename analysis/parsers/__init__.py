"""Other people's logs: one module a format, each a pure streaming function from lines to records.

`read` finds out by the content which formats a file holds, and reads each of them.
"""
