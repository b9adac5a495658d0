"""The fault campaign: runs the applications of both demos on clusters, with faults drawn from a seed, and checks that
nothing is lost, duplicated, misordered or wrong.

    python scripts/soak.py --rounds 100 --seed 7 --report campaign.json
    python scripts/soak.py --rounds 100 --seed 7 --report campaign.json --continue      # rounds that are not good yet
    python scripts/soak.py --seed 7 --round 12          # one round again
    python scripts/soak.py --table campaign.json        # the report as Markdown

Exit code 1 if a round fails; its folder with the logs is kept. docs/reliability.md lists the faults and the checks.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "tests/support"
sys.path.extend(map(str, (HERE, SUPPORT, *SUPPORT.glob("*/"))))

from campaign import plan, report  # noqa: E402
from campaign.runner import campaign  # noqa: E402

KINDS = sorted({kind for kinds in plan.KINDS.values() for kind in kinds})


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.go_on and not given.report:
        parser.error("--continue needs the --report of the previous rounds")
    if given.table:
        print(report.table([report.read(file) for file in given.table]), end="")
        return 0
    numbers = set(given.round) or set(range(1, given.rounds + 1))
    drawn = islice(plan.rounds(given.seed, given.only, given.app, given.breaks), max(numbers))
    chosen = [one for one in drawn if one.number in numbers]
    made = report.Report(given.seed)
    if given.go_on:
        made = report.begun(given.report, given.seed)
        good = {played.number for played in made.rounds}
        chosen = [one for one in chosen if one.number not in good]
    if given.plan:
        print(*chosen, sep="\n")
        return 0
    return _play(given, chosen, made)


def _play(given: argparse.Namespace, chosen: list[plan.Round], made: report.Report) -> int:
    """Start the services, which a plan and a table do not need, and play the rounds."""
    from rich.console import Console

    from campaign.adtech import AdtechRound
    from campaign.breaks import Struck, require_possible
    from campaign.shop import ShopRound
    from campaign.world import world
    from penstock_demo.stage import staged
    from penstock_demo.view import view

    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    root = given.root.absolute()
    shutil.rmtree(root / "services", ignore_errors=True)
    console = Console()

    def all_of_them(stack: ExitStack) -> int:
        shown = stack.enter_context(view(console))
        servers = stack.enter_context(world(root / "services", shown.say))

        def play(one: plan.Round, folder: Path, struck: list[Struck], undo: ExitStack) -> dict[str, Any]:
            require_possible(one)
            undo.callback(servers.clear)
            undo.callback(servers.heal)
            kind = ShopRound if one.application == "shop" else AdtechRound
            return kind(one, servers, folder, struck, shown, undo).outcome()

        campaign(chosen, made, play, root, file=given.report, minutes=given.minutes, say=shown.say)
        shown.say(report.table([made]))
        return 1 if made.failed else 0

    return staged(all_of_them, keep=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="number of rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help="seed of the plan (default: random)")
    parser.add_argument(
        "--round", type=int, action="append", default=[], metavar="K", help="play only this round; may be repeated"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no round after this time")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help=f"breaks, or words of their names: {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--breaks", type=int, default=plan.MOST, metavar="N", help="at most N breaks in a round (default: %(default)s)"
    )
    parser.add_argument("--app", choices=tuple(plan.KINDS), help="play only this application")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="report file, written after each round")
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="skip the rounds that are good in the report"
    )
    parser.add_argument(
        "--root", type=Path, default=Path(".penstock/soak"), help="folder for servers and logs (default: %(default)s)"
    )
    parser.add_argument("--plan", action="store_true", help="only print the rounds")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE.json", help="print these reports as Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
