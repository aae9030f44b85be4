"""The page for a browser, at a port of this machine only.

sessions           one-time links, and the sessions that they become
page_gate          the checks of every request of a browser
page_app           the requests that a page may make, and the headers of responses
bundle_page_files  the files of the page as they are sent
page_server        the port: opened for the first link, and again after a restart
files/             the page itself: HTML, CSS, JavaScript, and the library that draws (vendor/)
"""
