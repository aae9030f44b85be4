"""Attempts that end so that their jobs continue later.

savable   whether a job continues from its state, if its attempt is asked to end
losses    how such an attempt ended, and how many of its steps were not saved
"""
