"""The users' changes of jobs in the queue, and their requests about the machine.

change_jobs, change_arrays   changes of jobs that are not over; the same for all jobs of an array
hold                         hold and release: a job saves, keeps its position, and starts later
job_edits                    another job file for a job that has not started
rerun                        a job that is over, once more: from its newest checkpoint or anew
adopt                        a job that watches a training started by hand
drain                        no job starts
show_jobs, shown_specs       jobs for clients; their job files without secrets
job_examples, job_results    the first examples of a job; its curves and checkpoints
thinned_checkpoints          which newest checkpoints are thinned
machine_state                the daemon, the machine, and its use by users
"""
