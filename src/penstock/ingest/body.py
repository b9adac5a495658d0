"""Counts the memory of requests, and unpacks gzip within limits of size."""

from __future__ import annotations

import zlib

from penstock.ingest.responses import Refused

GZIP = 16 + zlib.MAX_WBITS
WINDOW = 16 << 10
"""Bytes unpacked at a time: what follows the end of a member is copied, up to a window for each member."""
MEMBERS = 10_000
"""Most gzip members in a body. A member costs a few microseconds and may be empty: 8 MB have room for 400 000."""
FULL = 1
"""Seconds after which callers may try again when the memory for requests is used up."""


class InFlight:
    """Counts the bytes of requests that are not answered yet."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0

    def require_room(self) -> None:
        if self.bytes >= self.most:
            raise Refused(429, f"{self.bytes} bytes of requests are under way; send again later", retry_after=FULL)


class Share:
    """The bytes of one request in `InFlight`, given back at its end."""

    __slots__ = ("_all", "_size")

    def __init__(self, all: InFlight) -> None:
        self._all, self._size = all, 0

    def give_back(self) -> None:
        self._all.bytes -= self._size
        self._size = 0

    def take(self, size: int) -> None:
        self._size += size
        self._all.bytes += size
        if self._all.bytes > self._all.most and self._all.bytes > self._size:
            raise Refused(429, "the memory for requests is taken; send again later", retry_after=FULL)


def too_large(most: int) -> Refused:
    return Refused(413, f"a request may have at most {most} bytes; send fewer events in each")


def unpack(body: bytes, encoding: bytes, *, most: int) -> bytes:
    """The body without its Content-Encoding; at most `most` bytes are unpacked.

    Raises `Refused` if the encoding is unknown, the gzip is not valid, or there are too many bytes or members.
    """
    coding = encoding.strip().lower()
    if coding in (b"", b"identity"):
        return body
    if coding not in (b"gzip", b"x-gzip"):
        raise Refused(415, f"the content encoding {encoding.decode('latin-1')!r} is not known; use gzip or none")
    out: list[bytes] = []
    size, members, at, member = 0, 0, 0, None
    while at < len(body):
        if member is None:  # members may follow one another (RFC 1952, section 2.2)
            member, members = zlib.decompressobj(GZIP), members + 1
            if members > MEMBERS:
                raise Refused(400, f"the body has more than {MEMBERS} gzip members; send it as one")
        window = body[at : at + WINDOW]
        try:
            # At most `most` + 1 in all, so that only what is behind the member's end is left over of the window.
            out.append(member.decompress(window, most - size + 1))
        except zlib.error as error:
            raise Refused(400, f"the body is not valid gzip: {error}") from None
        size += len(out[-1])
        if size > most:
            raise too_large(most)
        at += len(window) - len(member.unused_data)
        if member.eof:
            member = None
    if member is not None:
        raise Refused(400, "the body is not valid gzip: it ends too early")
    return b"".join(out)
