"""wandb and MLflow, each behind a process of its own, so that neither can stop the training.

identity         who a run is for trackers, over resumes and restarts
tracker_feed     what rank 0 hands to such a process, without ever waiting for it
tracking         which trackers a job has, and what they are told of it
tracker_program  the process: the standard library and the tracker's own package
"""
