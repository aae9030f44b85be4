"""Changes jobs in the queue, and answers requests about jobs and the machine.

priority_and_array_changes      cancels jobs, sets priorities, and changes all jobs of an array
hold                            holds and releases jobs: a held job saves, and starts again later
job_edits                       replaces the job file of a job that has not started
rerun                           runs an ended job again, from its newest checkpoint or the start
adopt                           makes a job that watches a training run started by hand
cached_job_views                makes views of jobs for clients, with job files without secrets
curves_checkpoints_predictions  returns curves, checkpoints, predictions and first examples of a job
machine_state_and_drain         returns the state of daemon and machine; drains the queue
"""
