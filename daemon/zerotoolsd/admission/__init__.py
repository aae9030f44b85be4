"""What is checked before a job is accepted: its files, its model, its interpreter, this machine.

It imports no other room of the daemon.
"""
