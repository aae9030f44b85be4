"""`zerotoolsd.toml`: the daemon's settings, written by the owner of the machine.

daemon_config   reads and checks the file
config_tables   the tables of the file, each as a dataclass
users_config    the table `[users]`: the allowed users, and their limits
"""
