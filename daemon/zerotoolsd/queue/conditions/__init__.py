"""Jobs that wait for a time or for other jobs: when that has come."""
