"""The durable queue: the states of a job, SQLite, and the choice of the next job.

lifecycle, clocks             which state follows which event; moments in time
schema, values, rows, store   one SQLite database; every change is a transaction with an event
job_texts                     job files of arrays, which are written before their jobs
changes                       the writes of such a transaction
scheduling, placement         which jobs start on which GPUs; the order of waiting jobs
writers                       which job writes into which directory
transitions                   a change of state: the lifecycle, the commit, the announcement
outlived                      GPUs that stay leased to ended attempts
parking, time_limit           isolation of a job with unexpected data; how long a job may run

It may import `config`, `service` and the supervisor's file formats. It starts no process.
"""
