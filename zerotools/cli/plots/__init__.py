"""Curves of jobs as plots: in the terminal, or as a picture by matplotlib.

Imports `cli.job_views` and `cli.output`.
"""
