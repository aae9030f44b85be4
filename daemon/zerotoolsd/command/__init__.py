"""What `zerotoolsd` does before it becomes a daemon, and needs no package for.

- `options`   the command line
- `units`     the files for systemd that the package has, for `--print-unit`
"""
