"""Reads the values of the screen repeatedly, at little cost.

read_screen_values   one reading of all values
job_list             the jobs; all of them are listed only after a change
job_details          one job: its checkpoints, and its log
job_reports          the curves and checkpoints that a job reported, each time only new reports
gpu_holders          the owners of processes on GPUs, and the memory of a GPU by owner
disk_reader          disks and checkpoint directories, by a child process that may hang
disk_reader_process  the child process
cached_value         values that are not read every time
"""
