"""The commands, one module each. Each module defines `command`, and `cli.command_table` lists it.

Options and their defaults are declared in `zerotools.public`, for commands that are also functions
of the Python API. A module is imported when its command is used. No command imports
another command.
"""
