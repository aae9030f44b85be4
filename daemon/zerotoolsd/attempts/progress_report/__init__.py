"""The progress of a running attempt.

phases          its phase, and the time since the last sign of progress
start_history   how long the phases before the first step usually take here
stall_report    the time since its last step, and the straggler rank
"""
