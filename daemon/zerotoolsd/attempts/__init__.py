"""The attempts of jobs: how the daemon starts and ends them, and finds them again after its
restart.

start_attempt          commits `launching`, makes the run directory, starts the supervisor
prepare_run_directory  makes the run directory of an attempt, with its files
make_attempt_plan      makes the supervisor's plan: commands, environment and limits of the ranks
launcher_command       makes the command of a user's own program
job_environment        makes the environment of a job
resource_limits        computes the resource limits of a job
choose_numa_binding    chooses processors and memory for each rank
delay_starts           delays the start of jobs after an error of the machine
backends               starts a supervisor: as a child, by systemd, or by a fork server
attempt_watcher        watches the supervisors, and writes stop requests
attempt_status         reads the status of an attempt from its run directory
reattach_attempts      finds the attempts of the previous daemon, and of held jobs
recover_lost_attempts  adds the data of run directories that the queue lacks
ask_to_stop            asks attempts to save and stop
cause_of_end           finds why an attempt ended, and whether a restart would help
make_end_event         makes the event for the lifecycle when an attempt has ended
finalize_attempt       commits the end of an attempt to the queue
orphan_processes       ends processes that run without a supervisor
supervisor_watchdog    ends supervisors that do not respond
last_report            reads the last reports of an attempt
current_phase          reports the phase of an attempt, and whether it makes progress
usual_start_duration   computes how long the start of a job usually takes
metric_counters        counts what the daemon shows at `/metrics`
crash_points           defines points at which tests kill the daemon
"""
