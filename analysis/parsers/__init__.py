"""Logs of other programs: one module per format, each a pure streaming function from lines to records.

`detect` finds the formats in a file by its content and reads each of them.
"""
