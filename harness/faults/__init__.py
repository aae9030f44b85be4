"""Kills and errors at every durable system call, and what must hold afterwards.

- `tracing`: one process under strace, which kills it, or lets a call fail, at its N-th call.
- `warm`: real daemons, supervisors and commands, forked from a process that has them imported.
- `held`: what such a process is; it stops itself until it is traced.
- `stand_in`: a rank that trains nothing, and saves real checkpoints as ranks do.
- `daemons`: a state directory, its daemon, and a client that submits, cancels and cleans.
- `stories`: what happens to the jobs of one daemon, each short.
- `attempts`: stories of a supervisor, its keeper and a rank, without a daemon.
- `copies`: backup, restore and migration of the queue.
- `points`: which points there are, which are tried, and what was found at each.
"""
