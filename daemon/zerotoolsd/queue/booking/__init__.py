"""The users' use of the machine, booked in the queue.

gpu_use      GPU-seconds by user and hour
"""
