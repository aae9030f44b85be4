"""A limited fault-injection test on the user's machine: `zerotools chaos`.

The test starts its own zerotoolsd in a separate directory. This daemon runs toy programs, which
count steps and save. Meanwhile the toy programs and the daemon are killed and stopped. At the end
the test checks the guarantees of zerotools.

run_chaos        the whole test, from its start to its report or to a signal that ends it
chaos_options    the options and their limits
private_daemon   the daemon of the test: start, kill, restart, end
toy_queue        the toy jobs: submit them, and follow them until they end
toy_program      the program of a toy job, run as a script, and the reader of its log
chaos_report     the guarantees that are checked at the end, and the report
inject_faults    the kinds of faults, and how each fault is undone
own_processes    finds the test's own processes; signals are sent only to those
cleanup_process  ends every process of a test, also if the test was killed
"""
