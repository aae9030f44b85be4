"""Headers for browsers: load nothing from elsewhere, do not embed the page, cache nothing."""

from __future__ import annotations

from aiohttp import web

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Scripts and styles come only from files of the page, and no text becomes markup (W3C, "Content
Security Policy Level 3" and "Trusted Types")."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers to a response."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
