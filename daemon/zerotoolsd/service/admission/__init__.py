"""The checks before a job is accepted: its files, its model, its interpreter, this machine.

survey                   all checks of files, in one process
preflight, preflight_data, preflight_model
                         the files, the data, the model directory and the tokenizer
interpreter_check        the packages for training in the job's interpreter
dry_run                  the errors that ranks would find, by the job's interpreter
memory_check             whether a job can fit into this machine's memory at all
machine_needs            what a job needs of the machine, other than GPUs and files
argv_limit               arguments and environment that the kernel takes
dependency_check         the jobs and the time that a job starts after
directory_checks, checkpoint_listing
                         directories of users, and the checkpoints in them
adoptable                whether a process that a user started can be watched
evaluation_job           the job that evaluates what another one trains
"""
