"""What the dispatcher's loop does in each round.

growing          elastic jobs that run take more of what is free
placing_rounds   who starts now, on what, of those that wait
memory_guards    the guards of memory, made of the parts of the daemon
room_making      jobs that run make room for one of higher priority
stop_asking      attempts that run are asked to save and stop: for a cancel, at a time limit, or as
                 their job is to go on later
"""
