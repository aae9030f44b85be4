"""The tables of the job file. Each module has the keys of one table and the rules for them.

`spec` is the whole job; `job_rules` has the rules between tables. Standard library only. Imports
`jobs.binding`.
"""
