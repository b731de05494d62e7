"""Each check of the judge switched off in turn: does its cheat get through the whole judging?

python bench/ablation.py [--truth rows|whole] [CHECK]...
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.ablation import ABLATION, without
from tests.support.corpus import WORKERS, Outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", default="rows", choices=("rows", "whole"), help="as of judge")
    parser.add_argument("checks", nargs="*", help="checks; all of the table if none is named")
    given = parser.parse_args()
    checks = given.checks or list(ABLATION)
    held = []

    def run(check: str) -> Outcome:
        return without(check, whole=True, truth=given.truth)

    with ThreadPoolExecutor(WORKERS) as pool:
        for check, outcome in zip(checks, pool.map(run, checks), strict=True):
            through = outcome.verdict == "verified"
            print(f"without {check}: {ABLATION[check].cheat} is {outcome.verdict}", flush=True)
            if not through:
                held.append(check)
                print(outcome)
    print(f"{len(checks) - len(held)} of {len(checks)} checks let their cheat through when off")
    return 1 if held else 0


if __name__ == "__main__":
    sys.exit(main())
