"""Finds out who uses the machine's GPUs, and which ended jobs left memory on GPUs.

snapshot_thread          takes snapshots of the machine for the event loop
share_gpus_with_daemons  locks GPUs, so that several daemons can share the machine
check_gpu_use_of_jobs    measures the use of GPUs; finds jobs that use too much or are idle
leaked_gpu_memory        finds memory that an ended attempt left on a GPU, and who holds it
gpu_leak_watch           checks GPUs after each attempt, and keeps GPUs leased until they are free
"""
