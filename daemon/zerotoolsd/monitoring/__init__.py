"""Reports on the machine and on jobs.

prometheus_metrics  makes `/metrics` from counters and the current state of the queue and the GPUs
history_recorder    samples the use of the machine and of each attempt
history_file        stores the samples, and combines old samples into coarser ones
notifications       sends notices about jobs to webhooks and to commands of users

No label of a metric has the name, the number or the owner of a job. So the number of series depends
on the machine, never on its jobs, and a reader learns nothing about jobs of other users.
"""
