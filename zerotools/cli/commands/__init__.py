"""The commands, one module each. Each module defines `command`, and `cli.command_table` lists it.

A module is imported when its command is used. No command imports another command.
"""
