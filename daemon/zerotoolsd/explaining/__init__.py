"""Why a job waits, was tried again, or ended, with the numbers: what `zerotools explain` shows.

explanation    made of what the queue and the scheduler's last pass know; pure
"""
