"""Chooses the queued jobs that start next and their GPUs, and says why other jobs wait.

resource_requests     the resources and the compute capability that jobs need
pending_queue         the waiting jobs, grouped by need
suitable_gpus         which GPUs a job can use, and why it cannot use other GPUs
memory_left_for_jobs  how much memory is left for jobs that declare their memory
gpu_pass_state        the whole and the shared GPUs that are left during a pass
user_quota            how many resources each user may still use
scheduler             one pass over the waiting jobs, and the reasons why jobs wait; no I/O
pass_input            the input of a pass as one value
"""
