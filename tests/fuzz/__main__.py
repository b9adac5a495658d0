"""`python -m fuzz`: decoders under random and damaged input for a time or a number of inputs, or under one file."""

from __future__ import annotations

import argparse
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.extend(map(str, (SUPPORT, *SUPPORT.glob("*/"))))

from .watch import ENDLESS, Report, names, run, run_case  # noqa: E402


def main() -> int:
    """Exit code 1 if anything was found, 2 for wrong arguments."""
    args = _arguments()
    chosen: list[str] = args.decoders or names()
    if unknown := set(chosen) - set(names()):
        print(f"no decoder {', '.join(sorted(unknown))}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    print(f"seed {args.seed}", flush=True)
    seconds = args.minutes * 60 * args.jobs / len(chosen) if args.minutes else float("inf")

    def one(name: str) -> Report:
        report = (
            run_case(name, args.case)
            if args.case
            else run(name, args.seed, args.cases, inputs=0 if args.corpus else args.inputs, seconds=seconds)
        )
        print(report.line(), flush=True)
        return report

    with ThreadPoolExecutor(args.jobs) as pool:
        reports = list(pool.map(one, chosen))
    for report in reports:
        for finding in report.findings:
            print(f"\n{report.decoder}: input {finding.number} of seed {report.seed}, {finding.file}\n{finding.wrong}")
    if args.json:
        args.json.write_text(json.dumps([report.as_dict() for report in reports], indent=1))
    return int(any(report.findings for report in reports))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("decoders", nargs="*", metavar="DECODER", help=f"some of {', '.join(names())} (default: all)")
    parser.add_argument("--minutes", type=float, help="for all decoders together (default: 10, without --inputs)")
    parser.add_argument("--inputs", type=int, default=ENDLESS, help="of each decoder")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help="default: drawn, and printed")
    parser.add_argument("--jobs", type=int, default=1, help="decoders at a time (default: %(default)s)")
    parser.add_argument("--corpus", action="store_true", help="only the inputs of tests/fuzz/corpus")
    parser.add_argument("--case", type=Path, metavar="FILE", help="only this input")
    parser.add_argument(
        "--cases",
        type=Path,
        default=Path("../.penstock/fuzz"),
        help="where inputs with findings go (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports there")
    args = parser.parse_args()
    if args.case and len(args.decoders) != 1:
        parser.error("--case needs one DECODER")
    if args.minutes is None and args.inputs == ENDLESS:
        args.minutes = 10.0
    return args


if __name__ == "__main__":
    sys.exit(main())
