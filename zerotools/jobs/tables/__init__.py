"""The tables of the job file: the keys of each, and the rules between them. `spec` is the whole.

Standard library only. Imports `jobs.binding`.
"""
