"""A limited fault-injection test on the user's machine: `zerotools chaos`.

A private zerotoolsd in a separate directory runs toy programs, which count steps and save.
Meanwhile their processes and the daemon are killed and stopped; then the guarantees are checked.

run_chaos        a test from its start to its report, and the signals that end it
chaos_options    the options and their limits
private_daemon   the daemon of the test: started, killed, started again, ended
toy_queue        the toy jobs: submitted, followed to their ends
toy_program      the program of a toy job, run by its path, and the reader of its log
chaos_report     the guarantees that are checked at the end, and the report
inject_faults    the kinds of faults, and their reversal
own_processes    the test's own processes; signals only to those
cleanup_process  the end of every process of a test, also of a killed one
"""
