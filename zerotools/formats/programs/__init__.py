"""Run directories of other programs, by the names of what lies in them. No file is opened but the
small one in which a program names its newest checkpoint.

layout    how a program lays the directory of a run out, as data
table     one line for each program
run       a run's directory, read by a line of the table
"""
