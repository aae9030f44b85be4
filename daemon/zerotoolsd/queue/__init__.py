"""The durable queue: the states of a job, SQLite, and the choice of the next job.

lifecycle                     the table of transitions, and the next state of a job; no I/O
change_state                  a change of state: the lifecycle, the commit, the announcement
retry_rules                   the causes of an end, and the rule of each
clocks                        moments in time
schema, stored_values, rows, store
                              one SQLite database; every change is a transaction with an event
row_writes, tables            the writes of such a transaction; its smaller tables
transactions                  one change, or several as one
group_commit, disk_reserve    one write for many submits; space to end jobs on a full disk
job_file_slices               job files of arrays, which are written before their jobs
rebuild_import                the changes of a queue that is older than the run directories
dependency_table, waiting_conditions
                              the conditions that must be met before a job starts
scheduling, placement         which jobs start on which GPUs; the input of the scheduler
expected_memory, time_limit   the memory of a job that declares none; how long a job may run
fair_share                    the order of users by their past use of GPUs
directory_writers             which job writes into which directory
gpu_fences                    GPUs that no job gets after a hardware fault
fault_isolation               unexpected data of a job holds only that job

It starts no process and knows nothing of HTTP.
"""
