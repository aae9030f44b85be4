"""The page for browsers, which is served at a port of this machine only.

sessions           one-time links, and the browser sessions that begin with them
page_gate          checks every request of a browser
page_app           the requests that a page may make, and the headers of responses
bundle_page_files  prepares the files of the page for sending
page_server        opens the port for the first link, and again after a restart
files/             the page itself: HTML, CSS, JavaScript, and the library that draws (vendor/)
"""
