"""Attempts that start with torch imported, from fork servers, one for each user's environment.

warm_kinds         which attempts may start warm, and from which server: pure
fork_server        one server, from its start to its end
fork_server_pool   all servers, the choice of one, and why none is used
"""
