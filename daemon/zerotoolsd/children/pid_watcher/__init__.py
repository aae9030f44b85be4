"""The process that watches one that a user started by hand.

It is the only rank of its job, so the job has all features of others: a supervisor that survives
the daemon, a time limit, a recorded end, and notifications.

entry           starts the process
watch_process   watches the other process and those below it, and reads its exit status
"""
