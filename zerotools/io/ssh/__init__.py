"""Other machines, by the system's ssh.

ssh_host      a machine, in the user's spelling; the call of ssh, and its errors
remote_shell  a script that runs on a machine, and its output
"""
