"""Types and functions that several packages of the daemon share. The modules import no other
package of the daemon.

api_types         arguments and results of requests, and the errors raised when a request is refused
queue_terms       when a waiting job may start: priority, hold, begin time, dependencies
prometheus_text   metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0
time_slice        divides long work into slices, so that other requests run meanwhile
"""
