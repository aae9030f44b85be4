"""The parts of each round of the dispatcher's loop.

growing          running elastic jobs grow into free resources
placing_rounds   which waiting jobs start now, on which resources
memory_guards    the guards of memory, made of the parts of the daemon
room_making      running jobs yield to one of higher priority
stop_asking      running attempts are asked to save and stop: for a cancel, at a time limit, or
                 because their job continues later
"""
