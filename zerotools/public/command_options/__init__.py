"""Options of a command and of its function. Each option is declared once, as a key of a TypedDict.
The option of the command and the keyword of the function are made from this declaration.

option                how options are declared, and functions that take them
read_options          the checkpoint, and how it is read
run_options           memory, threads, dry runs, overwriting, the part that this process does
model_output_options  exported weights and their shards
zero_options          settings of DeepSpeed's ZeRO
map_options           the layout of another program
"""
