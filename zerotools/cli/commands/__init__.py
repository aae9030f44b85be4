"""The commands, one file each, with its `command`. `cli.command_table` lists them by module name.

A command is imported when it is needed, and no command imports another.
"""
