"""The daemon of another machine, by the system's ssh.

daemon_host, conversation  where it is, as a user writes it; what is said to it, and what it answers
tunnel                     the connection, and the socket here that leads to the daemon there
elsewhere                  what is different for a command whose socket leads to another machine
"""
