"""Changes jobs in the queue, and answers requests about jobs and the machine.

change_jobs    cancels jobs, sets priorities, and applies a change to all jobs of an array
hold           holds and releases jobs: a held job saves, keeps its position, and starts later
job_edits      replaces the job file of a job that has not started
rerun          runs an ended job once more: from its newest checkpoint, or from the start
adopt          makes a job that watches a training run started by hand
show_jobs      makes views of jobs for clients, with job files without secrets
job_results    returns curves, checkpoints, predictions and first examples of a job
machine_state  returns the state of daemon and machine and each user's share; drains the queue
"""
