"""The results of a job so far, for its readers.

step_records      what an attempt reported, read from its file within bounds
run_curves        curves of a job and of those that it resumes, as columns
evaluations       what jobs found that evaluate its checkpoints
checkpoint_tree   the checkpoints in a job's directory, by a process that looks
prediction_rows   what its evaluations generated, by such a process
result_looks      both of them, for the process that looks
"""
