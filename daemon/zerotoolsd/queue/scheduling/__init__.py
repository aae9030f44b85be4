"""The choice of the queued jobs that start next, their GPUs, and the reasons that others wait.

requests              the needs of jobs, also the compute capability
pending_queue         the waiting jobs, grouped by need
suitable_gpus         why a GPU cannot be used for a job
memory_left_for_jobs  the free part of declared memory
gpu_pass_state        the GPUs during a pass: whole ones and shared ones
user_quota            the remaining limits of users
scheduler             one pass over the waiting jobs, and the reasons why jobs wait; no I/O
pass_input            the input of a pass; it can be changed to a machine without some jobs
"""
