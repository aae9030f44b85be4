"""The lines of the screen for a size of the terminal, as pieces of text with a meaning each. These
functions are pure, so they are tested without a terminal.

whole_screen        the rows and columns of each part
view_state          the user's choices: a job, an order, a filter, a page
gpu_rows            a line for each GPU, and the processes that hold its memory
host_rows           processors, memory, pressure, network and disks
job_rows            the table of jobs
job_detail_rows     the chosen job, with its curves
help_and_log_pages  the keys, and a whole log
short_numbers       numbers in few columns
styled_lines        lines: measured, cut, padded, joined side by side, in ASCII; bars
"""
