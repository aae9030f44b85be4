"""What the HTTP handlers ask of the daemon.

protocol   what can be asked
exchanged  what is asked with, and what is answered
refusals   why not
time_slice divides long work, so that others are answered meanwhile
"""
