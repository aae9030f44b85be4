"""Which queued jobs start next, on which GPUs, and why the others wait.

demands, line        what jobs need, and the jobs that wait, by what they need
gpus, floor          the GPUs: why one cannot be given away; who has which during a pass
scheduler, waits     one pass over the line, pure; what each waiting job is told
"""
