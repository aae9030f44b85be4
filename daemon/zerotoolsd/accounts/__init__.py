"""Users of the machine for whom the daemon runs jobs, and how a process becomes one of them.

account       the account of a uid: its groups, name and home
users_config  `[users]` of the configuration
user_limits   limits of one user in the queue and on the machine

It imports no other package of the daemon.
"""
