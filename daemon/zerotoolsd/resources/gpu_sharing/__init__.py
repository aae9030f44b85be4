"""GPUs that several queues or several jobs share.

arbiter        which GPUs of the machine this daemon holds, next to daemons of others
measured_use   the use of each GPU by our own jobs
over_use       jobs that use more than they declared
idle_gpus      jobs that hold GPUs without using them
"""
