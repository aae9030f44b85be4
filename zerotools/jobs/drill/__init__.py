"""A limited fault-injection test on the user's machine: `zerotools chaos`.

A private zerotoolsd in a separate directory runs toy programs, which count steps and save.
Meanwhile their processes and the daemon are killed and stopped; then the guarantees are checked.

drill           a test from its start to its report
request         the options and their limits
private_daemon  the daemon: started, killed, started again, ended
toy_queue       the toy jobs: submitted, followed to their ends
toy_program     the program of a toy job, run by its path
drill_report    the results
faults          the kinds of faults, and their reversal
own_processes   the test's own processes; signals only to those
notes           the logs of the toy programs, line by line
promises        the guarantees that must hold at the end
tally           steps that were run, and those that counted
last_sweep      the end of every process of a test, also of a killed one
interrupts      signals that end a test
"""
