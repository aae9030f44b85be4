"""GPUs that several queues or several jobs share.

arbiter        which of the machine's GPUs this daemon holds beside those of other users
measured_use   what our own jobs use of each GPU
over_use       who uses more than it declared
fair_shares    what users have used, and who of them goes first
"""
