"""The results of a job so far, for its readers.

step_records      what an attempt reported, read from its file within bounds
run_curves        curves of a job and of those that it resumes, as columns
evaluations       what jobs found that evaluate its checkpoints
checkpoint_tree   the checkpoints in a job's directory, by a child process
prediction_rows   what its evaluations generated, by such a process
thinned_record    the record of a thinned checkpoint, by such a process
result_readers    the functions of that process
"""
