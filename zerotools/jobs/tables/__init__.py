"""The tables of the job file, a module each: its keys, and their rules.

`spec` is the whole job; `job_rules` has the rules between tables. Standard library only. Imports
`jobs.binding`.
"""
