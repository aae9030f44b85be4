"""The choice of the queued jobs that start next, their GPUs, and the reasons that others wait.

demands, line        the needs of jobs, and the waiting jobs grouped by need
capability_needs     the compute capability that a job needs
gpus, declared       why a GPU cannot be used; the free part of declared memory
floor, shares        the GPUs during a pass: whole ones and shared ones
scheduler, waits     one pass over the waiting jobs, pure; the reasons why jobs wait
machine_now          the input of a pass as one value, also as if some jobs were gone
preemption           which jobs yield to one of higher priority
"""
