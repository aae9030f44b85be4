"""What monitoring reads: `/metrics`, in Prometheus' text format and as OpenMetrics.

families       the metrics, from what was tallied and what the queue and the GPUs are at the moment
exposition     the two formats
tally          what is counted while the daemon runs

No label has the name, the number or the owner of a job: how many series there are depends on the
machine, never on its jobs, and whoever may ask learns nothing of a job of somebody else.
"""
