"""The metrics for monitoring: `/metrics`, in Prometheus' text format and as OpenMetrics.

families       the metrics, from the tally and the current state of the queue and the GPUs
exposition     the two formats
tally          the counters of the running daemon

No label has the name, the number or the owner of a job. So the number of series depends on the
machine, never on its jobs, and a reader learns nothing about jobs of other users.
"""
