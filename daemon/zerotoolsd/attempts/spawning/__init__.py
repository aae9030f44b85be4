"""How the supervisor of a prepared attempt comes to run: as a child of the daemon, or by systemd.

    way.py             which of the two, by the configuration and by who started the daemon
    child.py           the command, and the supervisor as a child
    transient_unit.py  the supervisor as a systemd service of its own, asked for with `systemd-run`
    places.py          where it runs, if it is another user's
    spawner.py         one of the two for each start, and what is done where systemd does not answer

Either way the supervisor is known by its run directory alone: it takes the lock there, and of two
copies of one attempt the second ends at once. So a start that nobody can say the outcome of (a
request that timed out, a daemon killed between the request and its answer) may be repeated.
"""
