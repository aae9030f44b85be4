"""What the machine and its jobs have used over time: sampled, thinned out with age, bounded.

series         a snapshot -> the numbers that are kept of it
job_memory     host memory of each attempt, by one look at /proc
downsampling   seconds into ranges of ten, and of sixty
history_file   an SQLite file of its own, which the daemon can lose
recorder       the loop that samples and writes
"""
