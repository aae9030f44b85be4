"""The machine's resources: who uses its GPUs, and which ended jobs left memory on them.

snapshot_thread          snapshots of the machine for the event loop
share_gpus_with_daemons  which GPUs of the machine this daemon holds, if other daemons use them too
watch_gpu_use            how much of each GPU jobs use; jobs that use too much, or leave it idle
leaked_gpu_memory        the memory that an ended attempt left on a GPU, and its owner
leak_watch               checks GPUs after each attempt, and keeps them leased until they are free
"""
