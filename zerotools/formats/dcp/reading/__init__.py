"""From a DCP directory to a Checkpoint, and to the TrainingState of its run.

Imports `keys`, `directories`, `io.distcp` and `runs`.

read             the whole checkpoint
job_manifest     a check for the files that a job's record and manifest list
training_state   the state of the run, in words that all formats share
"""
