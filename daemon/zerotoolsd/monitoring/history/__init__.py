"""The use of the machine and its jobs over time: sampled, aggregated with age, bounded.

series         a snapshot -> the stored numbers
job_memory     host memory of each attempt, by one scan of /proc
downsampling   seconds into ranges of ten, and of sixty
history_file   a separate SQLite file, which the daemon can lose
recorder       the loop that samples and writes
"""
