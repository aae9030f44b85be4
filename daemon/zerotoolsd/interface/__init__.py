"""The types that all parts of the daemon use to describe jobs. They import none of these parts.

api_types         arguments and results of requests, and the errors that refuse them
queue_terms       the terms of waiting jobs: priority, hold, begin, dependencies
prometheus_text   metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0
time_slice        divides long work, so that other requests run meanwhile
"""
