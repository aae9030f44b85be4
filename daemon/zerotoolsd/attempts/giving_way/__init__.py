"""Attempts that end so that their jobs go on later.

savable   whether a job goes on where it was, if its attempt is asked to end
losses    how an attempt ended that was asked to, and how many of its steps were not saved
"""
