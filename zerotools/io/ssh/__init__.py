"""Access to other machines by the ssh program of the system.

ssh_command_line  a machine, in the user's spelling; the call of ssh, and its errors
remote_shell      a script that runs on a machine, and its output
"""
