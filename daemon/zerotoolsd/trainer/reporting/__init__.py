"""Reports the events of a rank.

reporter         log lines for people, and datagrams to the supervisor
mfu              model FLOPs utilization
out_of_memory    explains that GPU memory is exhausted
memory_advice    settings that reduce GPU memory, for such a job
trackers         wandb and MLflow

These modules may import every package below the engines.
"""
