"""Explains with numbers why a job waits, was restarted, or ended: the data of `zerotools explain`.

explanation        from the queue and the scheduler's last pass; pure
resource_holders   the jobs that hold what a job waits for
"""
