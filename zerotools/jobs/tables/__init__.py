"""The tables of the job file, a module each: its keys, and the rules that they keep to.

`spec` is the whole job; `job_rules` has what the tables demand of one another. Standard library
only. Imports `jobs.binding`.
"""
