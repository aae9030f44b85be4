"""The page for a browser, at a port of this machine only.

sessions     one-time links, and the sessions that they become
page_gate    the checks of every request of a browser
page_app     the requests that a page may make, its files, and the headers of responses
page_server  the port: opened for the first link, and again after a restart
files/       the page itself: HTML, CSS, JavaScript, and the library that draws (vendor/)
"""
