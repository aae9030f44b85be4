"""Tables of the keys in the configs of other launchers and programs, and what each key means for a
job.

Data only. Imports no other package of `jobs`.
"""
