"""Options of a command and of its function. Each is declared once, as a key of a TypedDict. The
options of the command and the keywords of the function are made from it.

option           declarations, and functions that take options
read_options     a checkpoint, and how it is read
write_options    an output: memory, threads, a dry run, parts
export_options   exported weights, with their names and types
map_options      the layout of another program
zero_options     settings of the DeepSpeed run that resumes
machine_options  the machine that a training is estimated for
part_options     the part of the work that this process does
"""
