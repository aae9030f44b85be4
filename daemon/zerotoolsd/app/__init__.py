"""The program `zerotoolsd`: its command line, its start and its stop.

command_line     the options; needs no other package before the daemon starts
systemd_units    the files for systemd, for `--print-unit`
run_daemon       signals, and the order in which things start and stop
systemd          readiness, the watchdog, and sockets that systemd opened
state_directory  the state directory, and the one daemon that holds it
log_rate_limit   limits repeated errors in the daemon's log
"""
