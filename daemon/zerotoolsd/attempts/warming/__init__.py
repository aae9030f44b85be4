"""Attempts that find torch imported: fork servers, one for each Python environment of a user.

kinds         which attempts may start warm, and which server is theirs: pure
fork_server   one of them, from its start to its end
servers       all of them: which there are, who is asked, and why one was not
"""
