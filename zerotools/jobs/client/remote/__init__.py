"""The daemon of another machine, by the system's ssh.

daemon_host, conversation  its address in the user's spelling; the requests and responses
tunnel                     the connection, and the socket here that leads to the daemon there
elsewhere                  the differences for a command with a socket to another machine
"""
