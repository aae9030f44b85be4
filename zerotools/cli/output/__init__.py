"""What goes to a terminal, a pipe or a file: tables, colour, bars, charts, messages, JSON.

Knows no job and no checkpoint. Imports no other room of `cli`.
"""
