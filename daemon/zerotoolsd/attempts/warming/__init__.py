"""Attempts that find torch imported: fork servers, one for each Python environment of a user.

kinds      which attempts may start warm, and which server is theirs: pure
server     one fork server, from its start to its end
servers    all of them: which there are, who is asked, and why one was not
"""
