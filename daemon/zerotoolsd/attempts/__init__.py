"""Attempts of jobs: their start, their end, and recovery after a restart of the daemon.

start_attempt, launch      `launching` is committed first; then the run directory and the supervisor
backends, warm_start       how the supervisor is started; attempts that start with torch imported
environment, job_limits    the environment and the limits of a job
launcher_command           the command of a user's own program
start_backoff, restart_throttle, mount_check
                           why an attempt does not start yet
numa                       the processors and memory nodes of ranks
attempt_watcher            the supervisors' pidfds
attempt_status, recovery   the status of an attempt; attempts of the last daemon and of held jobs
rebuild_queue              the data of run directories that the queue lacks
stop_attempts              asks attempts to save and stop
stop_requests              the request files, and whether the supervisors received them
end                        the cause of an end, and how it is committed
leftovers                  processes that remain, and supervisors that do not respond
last_report, progress_report
                           the reports of ranks; whether an attempt makes progress
metric_counters            what the daemon counts for `/metrics`
crash_points               where tests let the daemon die
"""
