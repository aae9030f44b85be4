"""The tables of the job file: a module for each, with the table's keys and its rules.

`spec` is the whole job; `job_rules` has the rules between tables. Standard library only. Imports
`jobs.binding`.
"""
