"""The commands, one module each. Each module defines `command`, and `cli.command_table` lists the
module.

If a command is also a function of the Python API, `zerotools.public` declares its options and
defaults. A module is imported when its command is used. No command imports another command.
"""
