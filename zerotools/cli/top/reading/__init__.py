"""Reads the values of the screen repeatedly, at little cost.

read_screen_values   reads all values for one refresh
job_list             lists the jobs; all of them only after a change, otherwise the running jobs
job_details          reads one job: its checkpoints, and its log
job_reports          reads curves and checkpoints from the reports of a job; each report only once
gpu_holders          finds the owners of processes on GPUs, and the memory of a GPU by owner
disk_reader          reads disks and checkpoint directories, by a child process that may hang
disk_reader_process  the program of the child process
cached_value         keeps a value for some seconds, because reading it is slow
"""
