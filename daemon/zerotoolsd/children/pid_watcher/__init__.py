"""Watches a process that a user started by hand.

The watching process is the only rank of its job. So this job has the same features as every other
job: a supervisor that survives the daemon, a time limit, a recorded end, and notifications.

entry           starts the watching process
watch_process   watches the process and its descendants, and reads its exit status
"""
