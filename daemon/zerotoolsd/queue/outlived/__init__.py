"""What is left of an attempt that is over.

outlived_leases   GPUs that stay with it: what holds them is noted with their leases
upload_table      what was to be uploaded, and what came of that
"""
