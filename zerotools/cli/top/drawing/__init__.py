"""Makes the lines of the screen for a size of the terminal. A line consists of pairs of a text and
a meaning, which decides the style of the text.

These functions do no input or output, so they are tested without a terminal.

whole_screen        the rows and columns of each part
view_state          the user's choices: a job, an order, a filter, a page
gpu_charts          utilisation and memory of all GPUs over time
gpu_rows            a line for each GPU, and the processes that hold its memory
host_rows           processors, memory, pressure, network and disks
job_rows            the table of jobs
job_detail_rows     the chosen job, with its curves
help_and_log_pages  the keys, and a whole log
short_numbers       numbers in few columns
styled_lines        measures, cuts, pads and joins lines, converts lines to ASCII; bars
"""
