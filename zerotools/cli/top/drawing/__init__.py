"""The lines of the screen at a size of the terminal, as pieces of text with a meaning each: pure,
so that they are tested without a terminal.

whole_screen   the rows and columns of each part
view_state     the user's choices: a job, an order, a filter, a page
gpu_rows       a line for each GPU
host_rows      processors, memory, pressure, network and disks
job_rows       the table of jobs
detail_rows    the chosen job
curve_rows     its curves, as a line or as a chart
process_rows   the processes that hold memory of GPUs, if there is space
pages          the keys, and a whole log
meters         bars
figures        numbers in few columns
styled_lines   lines: measured, cut, padded, joined side by side
letters        for terminals that show only letters
"""
