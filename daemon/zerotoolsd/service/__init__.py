"""The interface between the HTTP handlers and the daemon.

protocol   the methods
exchanged  the types of arguments and results
refusals   the errors
time_slice divides long work, so that other requests run meanwhile
"""
