"""Users of the machine whose jobs the daemon runs, and how a process becomes one of them.

account       who a uid is: its groups, name and home
users_config  `[users]` of the configuration
user_limits   how much of the queue and of the machine one user may have

It imports no other room of the daemon.
"""
