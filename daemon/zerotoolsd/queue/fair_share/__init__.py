"""Fair share: users who used less of the GPUs come first.

user_order     the order of users by their past use; pure
share_weights  the shares that the administrator set
usage_report   the booked use of users, and their order
"""
