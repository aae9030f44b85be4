"""Options of a command and of its function. Each is declared once, as a key of a TypedDict. The
options of the command and the keywords of the function are made from it.

option                declarations, and functions that take options
read_options          a checkpoint, and how it is read
run_options           memory, threads, a dry run, overwriting, the part that this process does
model_output_options  exported weights and their shards, and settings of DeepSpeed's ZeRO
map_options           the layout of another program
"""
