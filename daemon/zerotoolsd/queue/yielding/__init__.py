"""Attempts that were asked to end so that their jobs continue later: the reason, the job that
benefits, and the cost.

yield_table   the table of the database
"""
