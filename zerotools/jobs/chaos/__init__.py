"""A limited fault-injection test on the user's machine: `zerotools chaos`.

The test starts its own zerotoolsd in a separate directory. This daemon runs toy programs, which
count steps and save. Meanwhile the toy programs and the daemon are killed and stopped. At the end
the test checks the guarantees of zerotools.

run_chaos        runs the whole test, and cleans up if a signal ends it
chaos_options    checks the options and their limits
private_daemon   starts, kills, restarts and ends the daemon of the test
toy_queue        submits the toy jobs, and follows them until they end
toy_program      is the program of a toy job; also reads its log
chaos_report     checks the guarantees at the end, and makes the report
inject_faults    injects each kind of fault, and undoes it later
own_processes    finds the processes of the test; only these get signals
"""
