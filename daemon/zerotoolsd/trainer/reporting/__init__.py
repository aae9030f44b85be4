"""Reports the events of a rank.

reporter               log lines for people, and datagrams to the supervisor
mfu                    model FLOPs utilization
explain_out_of_memory  explains that GPU memory is exhausted
trackers               wandb and MLflow

These modules may import every package below the engines.
"""
