"""Explains with numbers why a job waits, was restarted, or ended: the data of `zerotools explain`.

explanation    made from the queue and the scheduler's last pass; pure
"""
