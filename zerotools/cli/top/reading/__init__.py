"""What the screen shows, read again and again at little cost.

looking         one reading of all of it
job_list        the jobs, whole only where something has changed
gpu_holders     whose the processes on GPUs are, and the memory of a GPU by them
chosen_job      of one job: its curves, checkpoints and the end of its log
report_reader   what its ranks reported, each time only what is new
long_curve      a curve of any length in a bounded number of parts
places          disks and checkpoints, by a process that may hang
place_looks     that process
recent_samples  the last minutes, where no daemon keeps them
seldom          what is not worth reading every time
"""
