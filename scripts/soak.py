"""The demo for a long time, with a break every so often, drawn at random: nothing may be lost, misordered or wrong.

    .venv/bin/python scripts/soak.py --minutes 30 --every 60

Exit code 0 if the proof holds. The seed is printed; with it the same breaks come again.
"""

from __future__ import annotations

import argparse
import random
import sys

from penstock.cli.demo import PARTS
from penstock.cli.main import main

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--minutes", type=float, default=30, help="how long to write (default: %(default)s)")
parser.add_argument("--every", type=float, default=60, metavar="SECONDS", help="between breaks (default: %(default)s)")
parser.add_argument("--rate", default="500", help="writes a second, or max (default: %(default)s)")
parser.add_argument("--seed", type=int, default=random.randrange(2**31))
args, rest = parser.parse_known_args()

count = max(1, round(args.minutes * 60 / args.every) - 1)
drawn = random.Random(args.seed).choices(PARTS, k=count)
print(f"seed {args.seed}: {', '.join(drawn)}", flush=True)
breaks = [word for part in drawn for word in ("--break", part)]
sys.exit(main(["demo", "--seconds", str(args.minutes * 60), "--rate", args.rate, *breaks, *rest]))
