"""The checks before a job is accepted: its files, its model, its interpreter, this machine.

It imports no other package of the daemon.
"""
