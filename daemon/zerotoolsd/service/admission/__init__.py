"""The checks before a job is accepted: its files, its model, its interpreter, this machine.

file_survey        all checks of files, in one child process
preflight          the output directory, the files of a script, compilers and packages
preflight_data, preflight_model
                   the data; the model directory and the tokenizer
interpreter_check  the packages for training in the job's interpreter
dry_run            the errors that ranks would find, by the job's interpreter
memory_check       whether a job can fit into this machine's memory at all
argv_limit         arguments and environment that the kernel takes
dependency_check   the jobs and the time that a job starts after
directory_checks   directories of users, and the checkpoints in them
adoptable_process  whether a process that a user started can be watched
"""
