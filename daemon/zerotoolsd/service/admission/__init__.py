"""The checks before a job is accepted: of its files, its model, its interpreter, and this machine.

run_file_checks            runs all checks of the files that a job names, in one child process
preflight_files            checks output directory, files of a script, compilers and packages
preflight_data             checks the data
preflight_model            checks the model directory and the tokenizer
interpreter_check          checks that the job's interpreter has the packages for training
run_rank_checks            runs the model and data checks of the ranks in the job's interpreter
memory_check               estimates whether a job can fit into this machine's memory at all
dependency_check           checks the jobs that must end before a job starts, and its earliest start
checkpoints_and_conflicts  finds checkpoints and conflicts in directories of users
adoptable_process          checks whether a process that a user started can be watched
"""
