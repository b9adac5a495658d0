"""One decoder under many inputs, in a process of its own: what is tried, what is found, and how much it took.

The process writes each input into a shared file before it tries it, so that the parent can name the input that ended
or stopped it. An input is a number under a seed: the same two give the same bytes again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random as randoms
import resource
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

from waiting import patience

MOST_BYTES = 32 << 20
"""Of one input."""
HANG = 3.0
"""CPU seconds of one input that are too many on a quiet machine, with those of the reference."""
MEMORY_FACTOR, MEMORY_MARGIN = 20, 64 << 20
"""An input of n bytes may take MEMORY_FACTOR * n + MEMORY_MARGIN bytes of memory."""
ADDRESS_SPACE = 16 << 30
"""Bytes that a process under test may map: a decoder that asks for more fails here, and not the machine."""
LOOKS = 64
"""Inputs between two resets of the peak that the kernel keeps."""

MOST_FINDINGS = 10
"""Of one decoder, after which it is left alone."""

CORPUS = Path(__file__).parent / "corpus"


class Difference(AssertionError):
    """The decoder and its reference disagree, or the decoder fails in another way than it promises."""


@dataclass(frozen=True)
class Decoder:
    """One decoder of bytes from outside with its reference.

    `draw` makes an input. `check` gives it to both: true if it was read, false if it was refused. It raises
    `Difference` for a wrong value; any error that leaves it is one, too.
    """

    name: str
    draw: Callable[[randoms.Random], bytes]
    check: Callable[[bytes], bool]


def decoder(name: str) -> Decoder:
    """The one of the module with this name."""
    module = importlib.import_module(f".{name}", __package__)
    made: Decoder = module.DECODER
    return made


def corpus(name: str) -> list[Path]:
    """Inputs that a fault was found with, or that are of another kind than the random ones."""
    return sorted((CORPUS / name).glob("*.bin"))


def drawn(of: Decoder, seed: int, number: int) -> bytes:
    """The input of this number."""
    data = of.draw(randoms.Random(f"{seed}/{of.name}/{number}"))
    assert len(data) <= MOST_BYTES, f"an input of {of.name} has {len(data)} bytes"
    return data


class Slate:
    """What a process under test says about itself, in a file that its parent reads while and after it runs."""

    _HEADER = struct.Struct("<qQQQQdQ")
    SIZE = _HEADER.size + MOST_BYTES

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened:
            self._map = mmap(opened.fileno(), self.SIZE)
        self.number = self.read = self.refused = self.length = self.busy = 0
        self.slowest = 0.0
        self.largest = 0

    @staticmethod
    def make(file: Path) -> None:
        """A file of zeros; its pages take no space before they are written."""
        with file.open("wb") as opened:
            opened.truncate(Slate.SIZE)

    def begin(self, number: int, data: bytes) -> None:
        """This input is tried now."""
        self._map[self._HEADER.size : self._HEADER.size + len(data)] = data
        self.number, self.length, self.busy = number, len(data), 1
        self.write()

    def write(self) -> None:
        """Show the counts as they are."""
        self._HEADER.pack_into(
            self._map, 0, self.number, self.length, self.busy, self.read, self.refused, self.slowest, self.largest
        )

    def look(self) -> None:
        """Take the counts from the file."""
        header = self._HEADER.unpack_from(self._map)
        self.number, self.length, self.busy, self.read, self.refused, self.slowest, self.largest = header

    def input(self) -> bytes:
        """The input that was tried last."""
        return self._map[self._HEADER.size : self._HEADER.size + self.length]


class Peak:
    """The most memory that this process has had since the last input; 0 where there is no Linux to tell."""

    def __init__(self) -> None:
        # The kernel's counts of resource usage would do, but they begin with the peak of the parent.
        self._status = os.open("/proc/self/status", os.O_RDONLY) if sys.platform == "linux" else None
        self._inputs = 0
        self._before = self._reset()

    def grown(self) -> int:
        """Bytes above what it was before the last input."""
        before, self._before = self._before, self._peak()
        by = self._before - before
        self._inputs += 1
        if by > 1 << 20 or self._inputs % LOOKS == 0:
            self._before = self._reset()
        return max(by, 0)

    def _reset(self) -> int:
        """Set the peak to what is resident now (proc(5), clear_refs)."""
        if self._status is not None:
            Path("/proc/self/clear_refs").write_text("5")
        return self._peak()

    def _peak(self) -> int:
        if self._status is None:
            return 0
        status = os.pread(self._status, 4096, 0)
        return int(status[status.index(b"VmHWM:") + 6 :].split(None, 1)[0]) << 10


def trial(of: Decoder, data: bytes) -> tuple[bool, str]:
    """Whether the input was read, and what is wrong, which is empty if nothing is."""
    try:
        return bool(of.check(data)), ""
    except Difference as difference:
        return False, f"Difference: {difference}"
    except Exception:
        return False, traceback.format_exc()


def inputs(of: Decoder, args: argparse.Namespace) -> Iterator[tuple[int, bytes]]:
    """The corpus, whose numbers are below 0, then those drawn from the seed, until the count or the time is reached."""
    if args.case:
        # Twice: what is compiled and loaded at the first use is there at the second.
        yield from enumerate([Path(args.case).read_bytes()] * 2)
        return
    files = corpus(of.name)
    for number in range(max(args.first, -len(files)), 0):
        yield number, files[number].read_bytes()
    until = time.monotonic() + args.seconds
    for number in range(max(args.first, 0), args.inputs):
        if time.monotonic() > until:
            return
        yield number, drawn(of, args.seed, number)


def run(of: Decoder, slate: Slate, args: argparse.Namespace) -> None:
    """Try all inputs; a line of JSON for each that is wrong."""
    peak, findings = Peak(), 0
    for number, data in inputs(of, args):
        slate.begin(number, data)
        began = time.process_time()
        read, wrong = trial(of, data)
        took, grown = time.process_time() - began, peak.grown()
        slate.read, slate.refused = slate.read + read, slate.refused + (not read)
        slate.slowest, slate.largest = max(slate.slowest, took), max(slate.largest, grown)
        slate.busy = 0
        slate.write()
        if not args.case or number > 0:
            wrong = wrong or _excess(data, took, grown)
        if wrong:
            print(json.dumps({"number": number, "wrong": wrong, "input": data.hex()}), flush=True)
            findings += 1
        if findings == MOST_FINDINGS:
            return


def _excess(data: bytes, took: float, grown: int) -> str:
    if took > patience(HANG):
        return f"Hang: {took:.1f} s of CPU for {len(data)} bytes"
    if grown > MEMORY_FACTOR * len(data) + MEMORY_MARGIN:
        return f"Memory: {grown >> 20} MiB for {len(data)} bytes"
    return ""


def main() -> None:
    """The process under test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("decoder")
    parser.add_argument("slate", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=-(2**62))
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--case")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run(decoder(args.decoder), Slate(args.slate), args)


if __name__ == "__main__":
    main()
