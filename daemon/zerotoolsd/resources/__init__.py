"""The machine's resources: who uses its GPUs, and who left memory there.

machine_snapshot    snapshots of the machine for the event loop
gpu_sharing         GPUs that several queues or jobs share
leaked_gpu_memory   memory that stays on a GPU after its attempt
"""
