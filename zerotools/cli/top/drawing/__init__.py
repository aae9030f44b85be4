"""Makes the lines of the screen for a size of the terminal. A line consists of pairs of a text and
a meaning, which decides the style of the text.

These functions do no input or output, so they are tested without a terminal.

whole_screen        divides the screen into rows and columns for its parts
view_state          holds the user's choices: a job, an order, a filter, a page
gpu_rows            makes a line for each GPU, and for each process that holds its memory
host_rows           makes the rows for processors, memory, pressure, network and disks
job_rows            makes the table of jobs
job_detail_rows     makes the rows of the chosen job, with its curves
help_and_log_pages  makes the page of keys, and the page of a whole log
short_numbers       writes numbers in few columns
styled_lines        measures, cuts, pads and joins lines, converts lines to ASCII; bars
"""
