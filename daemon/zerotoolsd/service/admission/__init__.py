"""The checks before a job is accepted: its files, its model, its interpreter, this machine.

check_all_files    all checks of the files that a job names, in one child process
preflight          the output directory, the files of a script, compilers and packages
preflight_data, preflight_model
                   the data; the model directory and the tokenizer
interpreter_check  the packages for training in the job's interpreter
start_dry_run      runs the model and data checks of the ranks in the job's interpreter
memory_check       estimates whether a job can fit into this machine's memory at all
dependency_check   the jobs that must end before a job starts, and its earliest start time
directory_checks   directories of users, and the checkpoints in them
adoptable_process  whether a process that a user started can be watched
"""
