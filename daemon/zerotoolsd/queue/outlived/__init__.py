"""The remains of an attempt that has ended.

outlived_leases   GPUs that stay leased to it, with the process or memory that holds them
upload_table      the planned uploads and their results
"""
