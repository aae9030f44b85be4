"""The action after the end of an attempt, by its cause. Pure.

causes       the causes, and the table with the rule of each
spreading    how the waits of jobs that ended together are spread
"""
