"""The durable queue: the states of a job, SQLite, and the choice of the next job.

transition_table, lifecycle   the table of transitions; which event the end of an attempt is
clocks                        moments in time
retry_causes, retry_jitter    the rule for each cause of an end; how waits are spread
transitions                   a change of state: the lifecycle, the commit, the announcement
schema, values, rows, store   one SQLite database; every change is a transaction with an event
changes, tables               the writes of such a transaction; its smaller tables
transactions, last_change     one change, or several as one; the number of the last one
group_commit, disk_reserve    one write for many submits; space to end jobs on a full disk
job_texts                     job files of arrays, which are written before their jobs
rebuild_import                the changes of a queue that is older than the run directories
dependency_table, drain_table, waiting_conditions
                              what keeps jobs from starting
scheduling, placement         which jobs start on which GPUs; the input of the scheduler
expected_memory, time_limit   the memory of a job that declares none; how long a job may run
fair_share                    the order of users by their past use
directory_writers             which job writes into which directory
fault_isolation               unexpected data of a job holds that job alone

It starts no process and knows nothing of HTTP.
"""
