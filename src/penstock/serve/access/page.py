"""What protects the console from other web pages and other users: headers of answers, and the check of actions.

An action needs the token that the console printed when it started, in a header that no foreign page can send without
being asked first (a CORS preflight, which the console refuses). There are no cookies, so a browser adds nothing by
itself. The policy of the page allows only the console's own files, and the page's import map by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.requests import Request

from penstock.errors import PenstockError

TOKEN = "X-Penstock-Token"
IMPORT_MAP = re.compile(r'<script\s+type="importmap"\s*>(.*?)</script>', re.DOTALL)


class Refused(PenstockError):
    """The request is not allowed."""


def policy(page: str) -> str:
    """The Content-Security-Policy of a page: nothing but the console's own files."""
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(import_map.encode()).digest()).decode()}'"
        for import_map in IMPORT_MAP.findall(page)
    ]
    return "; ".join(
        (
            "default-src 'self'",
            " ".join(("script-src 'self'", *hashes)),
            "img-src 'self' data:",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def headers(policy: str) -> Mapping[str, str]:
    """The headers of each answer."""
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }


def require_allowed(request: Request, token: str | None) -> None:
    """Raise Refused if this request may not have an answer."""
    if request.method == "GET":
        require_own_page(request)
    else:
        require_action(request, token)


def require_own_page(request: Request) -> None:
    """Raise Refused if a page of another site asks; browsers say so in `Sec-Fetch-Site`."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Refused("requests of other web pages are refused", next="open the console's own page")


def require_action(request: Request, token: str | None) -> None:
    """Raise Refused unless the console may act, and this request is allowed to let it act."""
    if token is None:
        raise Refused("the console is read-only", next="start it with --allow-actions")
    require_own_page(request)
    _require_same_origin(request)
    tokens = request.headers.getlist(TOKEN)
    if len(tokens) != 1 or not hmac.compare_digest(tokens[0].encode(), token.encode()):
        raise Refused(
            f"the header {TOKEN} does not have the console's token",
            next="open the address with #token= that the console printed when it started",
        )


def _require_same_origin(request: Request) -> None:
    """An origin must be exactly the console's own; programs send none."""
    for origin in request.headers.getlist("origin"):
        parts = urlsplit(origin)
        if parts.netloc.lower() != request.headers.get("host", "").lower():
            raise Refused("actions of pages of another origin are refused", next="open the console's own page")
