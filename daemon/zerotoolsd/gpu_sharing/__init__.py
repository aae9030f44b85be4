"""GPUs that several queues or several jobs share.

arbiter      which of the machine's GPUs this daemon holds beside those of other users
"""
