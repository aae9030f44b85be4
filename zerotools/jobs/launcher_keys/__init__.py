"""Tables of the keys in the configs of other launchers and programs, with their meaning for a job.

Data only. Imports no other package of `jobs`.
"""
