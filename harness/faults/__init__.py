"""Kills and errors at every durable system call, and the checks that follow.

- `tracing`: runs one process under strace, which kills it, or makes a call fail, at its N-th call.
- `warm`: forks real daemons, supervisors and commands from a process that has them imported.
- `held`: the program of such a process; it stops itself until it is traced.
- `stand_in`: a rank that trains nothing, but saves real checkpoints.
- `daemons`: a state directory, its daemon, and a client that submits, cancels and cleans.
- `stories`: short scenarios for the jobs of one daemon.
- `attempts`: scenarios of a supervisor, its keeper and a rank, without a daemon.
- `copies`: backup, restore and migration of the queue.
- `points`: lists the points, samples them, and collects the result of each.
"""
