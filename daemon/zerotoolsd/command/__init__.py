"""The command line of `zerotoolsd`, which needs no other package before the daemon starts.

- `options`   the command line
- `units`     the files for systemd, for `--print-unit`
"""
