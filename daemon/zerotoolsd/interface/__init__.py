"""Types and functions that several packages of the daemon share. They import no other
package except `users`.

api_types         defines arguments, results and errors of requests
start_conditions  defines when a waiting job may start: priority, hold, begin time, dependencies
prometheus_text   formats metrics as text: Prometheus 0.0.4, or OpenMetrics 1.0
event_loop_slice  divides long work into slices, so that other requests run meanwhile
"""
