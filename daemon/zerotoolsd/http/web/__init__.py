"""The page for browsers, which is served at a port of this machine only.

sessions           keeps one-time links, and the browser sessions that begin with them
page_gate          checks every request of a browser
page_app           handles the requests of the page, and keeps its pictures of checkpoints
bundle_page_files  prepares the files of the page for sending
page_server        opens the port for the first link, and again after a restart
files/             contains the page: HTML, CSS, JavaScript, and a library for drawing (vendor/)
"""
