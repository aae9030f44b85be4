"""What is to be told of jobs, on the disk until somebody was told.

notices   one of them, and the table of all
"""
