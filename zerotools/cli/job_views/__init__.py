"""Describes jobs and the machine as text.

describe_job       describes the state, phase, outcome and checkpoints of a job, in words
progress_line      shows the steps and events of a job, as lines
job_curves         draws the curves of jobs, in the terminal or as a picture
training_examples  shows the first training examples of a job, with the trained parts marked
estimate_page      makes the page of `zerotools estimate`
machine_screen     shows GPUs, host and jobs now: `zerotools monitor`
machine_history    shows GPUs, host and jobs of the last hours: `monitor --history`
process_owners     finds the job or user that a process on a GPU belongs to

Imports `cli.output`.
"""
