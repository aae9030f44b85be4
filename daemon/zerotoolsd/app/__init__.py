"""The program `zerotoolsd`: its command line, its start and its stop.

command_line     reads the options, and imports the rest of the daemon only when it starts
run_daemon       signals, logging, and the order in which parts start and stop
systemd          tells systemd about readiness, and finds its sockets and unit files
state_directory  makes the state directory, and locks it for one daemon
"""
