"""`zerotoolsd.toml`: the daemon's settings, written by the owner of the machine.

daemon_config   reads and checks the file
config_tables   defines the tables of the file, each as a dataclass
notify_config   defines the table `[notify]`: the destinations of notifications
users_config    defines the table `[users]`: the allowed users, and their limits
"""
