"""Attempts that were asked to end so that their jobs go on later: why, for whom, at what cost.

yield_table   the table of the database
"""
