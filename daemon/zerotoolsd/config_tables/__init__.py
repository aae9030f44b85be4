"""Tables of `zerotoolsd.toml` that are longer than most.

notify_config   whom the daemon may tell what becomes of jobs
"""
