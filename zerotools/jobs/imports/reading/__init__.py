"""Code that the readers of all configs share: values by type, claims on keys of the job, the
report.

A claim is the value that one source gives to one key of the job file. Imports `jobs.launcher_keys`,
`jobs.text`, `jobs.jobfile_tables` and `jobs.binding`.
"""
