"""Starts the supervisor of a prepared attempt: as a child of the daemon, by systemd, or by a fork
server that has imported torch already.

choose_systemd_or_child       decides whether systemd or the daemon starts supervisors
spawn_supervisor              makes the command of a supervisor, and starts a supervisor as a child
start_transient_unit          starts a supervisor as a systemd service, with `systemd-run`
start_by_systemd_or_as_child  starts a supervisor by systemd; if that fails, as a child
fork_server                   starts a process that imports torch once, and then forks supervisors
fork_server_pool              chooses a fork server for an attempt, or says why none can be used

A start may be repeated if its outcome is unknown, for example after a request that timed out, or if
the daemon was killed before the reply. This is safe: a supervisor first takes the lock in its run
directory, so of two supervisors of one attempt the second ends at once.
"""
