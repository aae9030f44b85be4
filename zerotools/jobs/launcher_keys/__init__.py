"""Tables of the keys in the configs of other launchers and programs, and the meaning of each key
for a job.

Data only. Imports no other package of `jobs`.
"""
