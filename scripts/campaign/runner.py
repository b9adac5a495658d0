"""Plays the rounds of a campaign one after the other, and collects their results."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from campaign.breaks import Impossible, Struck
from campaign.plan import Round
from campaign.report import PROBLEMS, Played, Report

Play = Callable[[Round, Path, list[Struck], ExitStack], dict[str, Any]]
"""Plays a round in a folder, adds its breaks to the list and returns the results. May raise Impossible."""


def campaign(
    rounds: Iterable[Round],
    report: Report,
    play: Play,
    root: Path,
    *,
    file: Path | None = None,
    minutes: float = float("inf"),
    say: Callable[[str], None] = print,
) -> Report:
    """Play rounds until there are no more, or the time is over; the folder of a failed round is kept."""
    until = time.monotonic() + minutes * 60
    for chosen in rounds:
        if time.monotonic() > until:
            break
        say(str(chosen))
        played = _played(chosen, play, root / f"round-{chosen.number}")
        report.add(played, file)
        say(_told(played))
    return report


def _played(chosen: Round, play: Play, folder: Path) -> Played:
    folder.mkdir(parents=True, exist_ok=True)
    made = Played(chosen.number, str(chosen), chosen.application, chosen.settings, "failed", 0.0)
    began, struck = time.monotonic(), list[Struck]()
    try:
        with ExitStack() as stack:
            made.numbers = play(chosen, folder, struck, stack)
        made.state = "failed" if any(made.numbers[problem] for problem in PROBLEMS) else "good"
    except Impossible as error:
        made.state, made.error = "impossible", str(error)
    except Exception as error:
        made.error = "".join(traceback.format_exception_only(error)).strip()
        (folder / "error.txt").write_text(traceback.format_exc())
    made.breaks = [asdict(one) for one in struck]
    made.seconds = round(time.monotonic() - began, 1)
    if made.state == "failed":
        made.folder = str(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return made


def _told(played: Played) -> str:
    numbers = " ".join(f"{name} {played.numbers[name]}" for name in ("writes", "events", *PROBLEMS) if played.numbers)
    more = f" {played.error.splitlines()[0]}" if played.error else ""
    flowed = ", ".join(f"{one['kind']}: {one['flowed_s']} s" for one in played.breaks)
    kept = f"; logs in {played.folder}" if played.folder else ""
    return f"  {played.state} in {played.seconds:.0f} s: {numbers}{more} (flowing after {flowed}){kept}"
