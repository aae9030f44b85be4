"""Ends attempts reliably, or reports the processes that remain.

overseer             supervisors that do not respond
orphans              processes that still run without supervisor and keeper
untrusted_record     checks the processes that another user's records name
leftover_processes   jobs that wait for processes that cannot be ended
"""
