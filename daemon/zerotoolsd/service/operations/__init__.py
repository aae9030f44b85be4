"""Changes of jobs in the queue, and requests about the machine, as users send them.

change_jobs    cancels jobs, sets priorities, and applies a change to all jobs of an array
hold           holds and releases jobs: a held job saves, keeps its position, and starts later
job_edits      replaces the job file of a job that has not started
rerun          runs an ended job once more: from its newest checkpoint, or from the start
adopt          makes a job that watches a training run started by hand
show_jobs      jobs for clients: views, job files without secrets, thinned checkpoints
job_results    curves, checkpoints and predictions of a job, and its first examples
machine_state  the state of the daemon and of the machine, each user's share, and drains
"""
