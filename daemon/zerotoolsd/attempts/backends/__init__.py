"""Starts the supervisor of a prepared attempt: as a child of the daemon, by systemd, or by a fork
server that has imported torch already.

choose_backend     chooses child or systemd, and starts the supervisor as a child
systemd_unit       starts the supervisor as a systemd service, with `systemd-run`
spawn_supervisor   starts each supervisor in one of these ways; if systemd fails, as a child
fork_server        a process of one user that has torch imported, and forks supervisors
fork_server_pool   all fork servers; chooses one, or gives the reason why none is used

A start may be repeated if its outcome is unknown, for example after a request that timed out, or if
the daemon was killed before the reply. This is safe: a supervisor first takes the lock in its run
directory, so of two supervisors of one attempt the second ends at once.
"""
