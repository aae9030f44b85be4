"""Options of a command and of its function. Each option is declared once, as a key of a TypedDict.
The option of the command and the keyword of the function are made from this declaration.

declare_and_bind_options  how options are declared, and functions that take them
read_options              the checkpoint, and how it is read
part_and_memory_options   memory, threads, dry runs, overwriting, the part that this process does
model_output_options      exported weights and their shards
"""
