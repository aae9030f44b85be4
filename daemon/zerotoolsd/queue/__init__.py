"""The durable queue: the states of a job, SQLite, and who starts next.

lifecycle, clocks             which state follows which event; moments in time
schema, values, rows, store   one SQLite database; every change is a transaction with an event
job_texts                     job files of arrays, which are written before their jobs
changes                       what such a transaction writes
scheduling, placement         which jobs start on which GPUs; the line of those that wait
writers                       which job writes into which directory
transitions                   a change of state: the lifecycle, the commit, the announcement
outlived                      GPUs that stay with attempts which are over
parking, time_limit           a job with unexpected data is held alone; how long a job may run

It may import `config`, `service` and the supervisor's file formats. It starts no process.
"""
