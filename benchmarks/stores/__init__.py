"""Object stores on loopback.

every_format   all golden checkpoints from and to a store, with digests as of the local run
obstore        obstore and fsspec side by side
"""
