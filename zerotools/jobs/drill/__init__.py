"""A bounded drill of faults on the user's own machine: `zerotools chaos`.

A private zerotoolsd in a directory of its own runs toy programs, which count steps and save, while
their processes and the daemon are killed and stopped; then it is checked what was promised.

drill           a drill from its start to its report
request         what was asked for, and what may be asked
private_daemon  the daemon: started, killed, started again, ended
toy_queue       the toy jobs: submitted, seen to their ends
toy_program     what a toy job runs, by its path
drill_report    what came of it
faults          the kinds of trouble, and what undoes them
own_processes   which processes are the drill's own; signals to those alone
notes           what the toy programs noted, line by line
promises        what must hold at the end
tally           steps that were run, and those that counted
last_sweep      the end of every process of a drill, also of one that was killed
interrupts      signals that end a drill
"""
