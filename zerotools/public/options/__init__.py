"""Options that a command and its function have in common. Each is declared once, as a key of a
TypedDict: the command's options and the function's keywords are made from that.

option         how an option is declared, and a function that takes options
reading        which checkpoint of a path, and how it is read
writing        how an output is written: memory, threads, a dry run, parts
exporting      which weights are exported, with which names and types
maps           the layout of another program
zero           what the DeepSpeed run that resumes has
parts          which part of the work this process does
"""
