"""Ends attempts reliably, or reports the processes that remain.

overseer   supervisors that do not respond
strays     processes that still run without supervisor and keeper
beside     jobs that wait for processes that cannot be ended
"""
