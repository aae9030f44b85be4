"""Chooses the queued jobs that start next and their GPUs, and says why other jobs wait.

resource_requests        describes the resources and the compute capability that jobs need
pending_queue            keeps the waiting jobs, grouped by need
suitable_gpus            finds the GPUs that a job can use, and says why it cannot use other GPUs
memory_left_for_jobs     computes how much memory is left for jobs that declare their memory
reserve_and_assign_gpus  tracks the whole and the shared GPUs that are left during a pass
user_quota               tracks how many resources each user may still use
scheduler                runs one pass over the waiting jobs, and says why jobs wait; no I/O
pass_input               holds the input of a pass as one object
"""
