"""Users of the machine whose jobs the daemon runs, and how a process becomes one of them.

account   who a uid is: its groups, name and home
admitted  whom `[users] allow` lets in

It imports no other room of the daemon.
"""
