"""The durable queue of jobs: their states, the SQLite database, and the choice of the jobs that
start next.

lifecycle               computes the next state of a job from a table of transitions; no I/O
change_state            changes the state of a job, commits the change and announces it
retries_by_cause        defines the causes that end attempts, and how each is retried
clocks                  measures time correctly even after the wall clock was set
schema, sql_values, rows, store
                        read and change the SQLite database; each change is also an event
write_rows, tables      write rows within a transaction
transactions            commits one change alone, or several changes together
group_commit            commits submits that arrive at the same time with one disk write
database_disk_reserve   reserves disk space, so that jobs can be ended on a full disk
array_job_files         writes the job files of an array before its jobs are queued
insert_recovered_jobs   adds jobs and attempts that only the run directories record
check_start_conditions  checks the conditions that must be met before a job starts
scheduling              decides which jobs start, and on which GPUs
request_from_job_file   makes the request of a job for resources
schedule_queued_jobs    collects the input of the scheduler and runs the scheduler
expected_memory         predicts the memory of a job that does not declare it
time_limit              computes how much of a job's time limit is left
fair_share              orders users by their past use of GPUs
directories_in_use      records which job writes into which directory
gpu_fault_fences        keeps jobs away from a GPU after a hardware fault
fault_isolation         holds a job with unexpected data, so that other jobs continue

The package starts no process and does not use HTTP.
"""
