"""The commits of changes of the queue.

transactions  one change, or several as one; the actions after they are on the disk
last_change   the number of the last one, in a file next to the queue
"""
