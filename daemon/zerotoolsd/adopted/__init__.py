"""The process that watches one that somebody started by hand.

It is the only rank of its job, so that the job has all that others have: a supervisor that outlives
the daemon, a time limit, an end that is recorded once, people who are told.

entry      its start
watching   until the process has ended, or is left alone
exit_info  how it ended, of a process that is nobody's child here
tree       what runs below it
"""
