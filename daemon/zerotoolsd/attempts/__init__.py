"""The attempts of jobs: how the daemon starts and ends them, and finds them again after its
restart.

start_attempt          commits `launching`, makes the run directory, starts the supervisor
prepare_run_directory  the files of an attempt
make_plan              the plan of its supervisor: commands, environment and limits of the ranks
launcher_command       the command of a user's own program
job_environment, resource_limits, numa_binding
                       the environment of a job; its limits; processors and memory of its ranks
start_backoff             why an attempt does not start yet
backends                  how the supervisor is started: as a child, by systemd, by a fork server
attempt_watcher           watches the supervisors, and asks attempts to stop by a file
attempt_status            the status of an attempt, from its run directory
reattach                  finds the attempts of the previous daemon, and of held jobs
recover_missing_attempts  adds the data of run directories that the queue lacks
ask_to_stop               decides which attempts are asked to save and stop
cause_of_end              why an attempt ended: cause, advice, and whether a restart would help
end_event                 makes the event for the lifecycle when an attempt has ended
finalize_attempt          commits the end of an attempt to the queue
orphan_processes          ends processes that run without a supervisor
supervisor_watchdog       ends supervisors that do not respond
last_report, progress_report
                       the reports of ranks; whether an attempt makes progress
metric_counters       the counters that the daemon shows at `/metrics`
crash_points          points at which tests kill the daemon
"""
