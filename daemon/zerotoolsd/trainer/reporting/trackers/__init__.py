"""wandb and MLflow, each in a separate process, so that neither can stop the training.

identity         the identity of a run for trackers, over resumes and restarts
tracker_feed     sends rank 0's data to such a process, without ever waiting for it
tracking         the trackers of a job, and the data that they get
tracker_program  the process: the standard library and the tracker's own package
"""
