"""`zerotoolsd.toml`: the settings of the machine's owner.

daemon_config   reads and checks the file
config_tables   the tables of the file, one dataclass each
users_config    the table `[users]`: the allowed users, and their limits
"""
