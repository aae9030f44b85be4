"""Logs to wandb and MLflow, each in its own process, so that neither can stop the training.

tracker_feed       starts these processes on rank 0, and sends them the steps
tracker_program    the program of such a process: standard library and the tracker's package
"""
