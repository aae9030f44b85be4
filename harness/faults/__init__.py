"""Kills processes, or makes calls fail, at every system call that makes data durable, and checks
the result.

A story is a short scenario, such as "submit a job". A point is one system call of a story, at which
a process is killed or the call fails. The process to which this happens is the victim.

- `tracing`: runs a process under strace, which kills it, or makes a call fail, at its N-th call.
- `warm`: starts daemons, supervisors and commands by a fork of a process that has imported them.
- `held`: the program of such a process; it stops itself until strace is attached.
- `stand_in`: a rank that trains nothing, but saves real checkpoints.
- `daemons`: a state directory with its daemon, and a client that submits, cancels and cleans jobs.
- `stories`: stories of the jobs of one daemon.
- `attempts`: stories of a supervisor, its keeper and a rank, without a daemon.
- `copies`: stories of the queue's file: backup, restore, migration.
- `points`: lists all points, takes a sample of them, and collects the results.
- `operations`, `interleavings`, `rules`: random operations on a daemon, several at once, and the
  rules for jobs that are checked after each step.
"""
