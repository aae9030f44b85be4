"""`zerotoolsd.toml`: the settings of the machine's owner.

daemon_config        the whole file
users_config         the allowed users, and their limits
elastic_config       when running elastic jobs take more GPUs
history_config       the stored history of the machine
notify_config        the recipients of notifications about jobs
preemption_config    whether jobs yield to those of higher priority
pressure_config      the actions before memory is used up
warm_start_config    jobs that start with torch imported
web_config           the page for a browser
"""
