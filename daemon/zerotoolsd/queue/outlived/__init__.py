"""GPUs that stay with an attempt which is over.

outlived_leases   what holds them is noted with their leases
"""
