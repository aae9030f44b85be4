"""From a DCP directory to a Checkpoint, and to the TrainingState of its run.

Imports `keys`, `directories`, `io.distcp` and `runs`.

read             the whole checkpoint
job_manifest     whether the files that a job's record and manifest promise are there
training_state   what the files say of the run, in words that all formats share
"""
