"""The start of the supervisor of a prepared attempt: as a child of the daemon, or by systemd.

launch_backend   the choice, by the configuration and by the way the daemon was started
child            the command, and the supervisor as a child
transient_unit   the supervisor as a separate systemd service, started with `systemd-run`
spawner          one of the two for each start, and the fallback if systemd does not respond

Either way the supervisor is identified only by its run directory: it takes the lock there, and of
two copies of one attempt the second ends at once. So a start with an unknown outcome may be
repeated (a request that timed out, a daemon killed between the request and its reply).
"""
