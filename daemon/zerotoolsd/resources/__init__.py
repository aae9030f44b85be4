"""The machine's resources: who uses its GPUs, and which ended jobs left memory on them.

snapshot_thread          takes snapshots of the machine for the event loop
share_gpus_with_daemons  locks GPUs, so that several daemons can share the machine
watch_gpu_use            measures the use of GPUs, and finds jobs that use too much or nothing
leaked_gpu_memory        finds memory that an ended attempt left on a GPU, and who holds it
leak_watch               checks GPUs after each attempt, and keeps them leased until they are free
"""
