"""The end of an attempt, from its record to the commit.

cause_of_end         the cause, by the supervisor's record
permanent_failures   whether a crash would repeat
lost_steps           the steps that an attempt lost if it was asked to save
gpu_errors           XIDs of its GPUs
failure_advice       why a user's program failed, and one piece of advice
end_event            the event for the lifecycle
finalize_attempt     the commit, which is repeated if it fails
"""
