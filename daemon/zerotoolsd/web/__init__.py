"""The page for a browser, at a port of this machine alone.

sessions      one-time links, and the sessions that they become
page_gate     what every request of a browser passes
hanging_up    what is broken off as a session ends
page_keys     where handlers find what is theirs
page_headers  what browsers are told not to do
page_files    the files of the page, which are the same for everybody
page_app      the requests that a page may make
page_server   the port: opened for the first link, and again after a restart
files/        the page itself: HTML, CSS, JavaScript, and the library that draws (vendor/)
"""
