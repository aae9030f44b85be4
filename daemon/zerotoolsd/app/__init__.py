"""The program `zerotoolsd`: its command line, its start and its stop.

command_line     the options; needs no other package before the daemon starts
run_daemon       signals, logging, and the order in which parts start and stop
systemd          readiness, the watchdog, sockets of systemd, and the unit files
state_directory  the state directory, and the one daemon that holds it
"""
