"""The values of the screen, polled at little cost.

looking         one reading of all values
job_list        the jobs, complete only after a change
gpu_holders     the owners of processes on GPUs, and the memory of a GPU by owner
chosen_job      one job's curves, checkpoints and the end of its log
report_reader   the reports of its ranks, each time only new ones
long_curve      a curve of any length in a bounded number of parts
places          disks and checkpoints, by a process that may hang
place_looks     that process
recent_samples  the last minutes, if no daemon keeps them
seldom          values that are not read every time
"""
