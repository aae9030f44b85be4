"""Curves of jobs as plots, in the terminal or as a picture by matplotlib; the machine as it was,
and as it is, again and again.

Imports `cli.job_views` and `cli.output`.
"""
