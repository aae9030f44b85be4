"""What follows the end of an attempt, by its cause. Pure.

causes       the causes, and the one table of what follows each
spreading    how far the waits of jobs that ended together lie apart
"""
