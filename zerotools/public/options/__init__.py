"""Options that a command and its function have in common. Each is declared once, as a key of a
TypedDict: the command's options and the function's keywords are made from that.

option           how an option is declared, and a function that takes options
read_options     which checkpoint of a path, and how it is read
write_options    how an output is written: memory, threads, a dry run, parts
export_options   which weights are exported, with which names and types
map_options      the layout of another program
zero_options     what the DeepSpeed run that resumes has
machine_options  the machine that a training is estimated for
part_options     which part of the work this process does
"""
