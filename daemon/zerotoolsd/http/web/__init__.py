"""The page for a browser, at a port of this machine only.

sessions      one-time links, and the sessions that they become
page_gate     the checks of every request of a browser
close_connections
              closes connections when a session ends
page_keys     the keys of the application
page_headers  the headers that restrict browsers
page_files    the files of the page, the same for everybody
page_app      the requests that a page may make
page_server   the port: opened for the first link, and again after a restart
files/        the page itself: HTML, CSS, JavaScript, and the library that draws (vendor/)
"""
