"""The program `zerotoolsd`: its command line, its start and its stop.

command_line     reads the options, and imports the rest of the daemon only when it starts
run_daemon       handles signals, sets up logging, starts and stops the parts in order
systemd          tells systemd about readiness, and finds its sockets and unit files
state_directory  makes the state directory, and locks it for one daemon
"""
