"""Which queued jobs start next, on which GPUs, and why the others wait.

demands, line        what jobs need, and the jobs that wait, by what they need
capability_needs     what GPUs must be able to compute for a job
gpus, declared       why a GPU cannot be given away; what is left of memory that jobs declare
floor, shares        the GPUs during a pass: who has which whole, and who has a share of which
scheduler, waits     one pass over the line, pure; what each waiting job is told
machine_now          what a pass goes by, as one value: also as if some jobs were gone
preemption           which jobs make room for one of higher priority
"""
