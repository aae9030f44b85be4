"""Starts the supervisor of a prepared attempt: as a child of the daemon, by systemd, or warm.

launch_backend     chooses child or systemd, and starts the supervisor as a child
systemd_unit       starts the supervisor as a systemd service, with `systemd-run`
spawner            uses one of the two for each start, and the child if systemd does not respond
fork_server        a process of one user that has torch imported, and forks supervisors
fork_server_pool   all fork servers, the choice of one, and why none is used

The supervisor is identified only by its run directory: it takes the lock there, and of two copies
of one attempt the second ends at once. So a start with an unknown outcome may be repeated (a
request that timed out, a daemon killed between the request and its reply).
"""
