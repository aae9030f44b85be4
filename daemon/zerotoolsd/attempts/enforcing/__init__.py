"""Attempts are ended for sure, or it is said what is left of them.

overseer   supervisors that do not do their work
strays     what still runs without supervisor and keeper
beside     jobs that wait for what may not be ended
"""
