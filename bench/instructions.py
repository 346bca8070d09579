"""Instructions of the kernels under callgrind: the same on a busy machine as on a quiet one.

make count            # count, compare with bench/results/instructions.json, and say what grew
make count UPDATE=1   # and keep the new counts
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "results" / "instructions.json"
# positions, precision, d, N, n
SCENARIOS = [
    ("last", "float64", 4, 2048, 32),
    ("last", "float64", 8, 512, 32),
    ("last", "float64", 16, 256, 32),
    ("last", "mixed", 16, 256, 32),
    ("all", "float64", 8, 512, 64),
    ("causal", "float64", 8, 8, 64),
]
TOLERANCE = 1.01
"""Growth that is worth a look."""


def build(folder: str) -> Path:
    subprocess.run(
        ["cmake", "-S", ROOT, "-B", folder, "-DLINATTN_CORE_TESTS=ON"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        ["cmake", "--build", folder, "--target", "count"], check=True, stdout=subprocess.DEVNULL
    )
    return Path(folder) / "count"


def count(program: Path, scenario: tuple[object, ...]) -> int:
    outcome = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program]
        + [str(part) for part in scenario],
        env={**os.environ, "LINATTN_ISA": "avx2"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", outcome.stderr)
    assert found is not None, outcome.stderr
    return int(found[1])


def main() -> int:
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    counts, grown = {}, []
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        for scenario in SCENARIOS:
            positions, precision, d, N, n = scenario
            name = f"{positions} {precision} d={d} N={N} n={n}"
            counts[name] = count(program, scenario)
            change = counts[name] / before.get(name, counts[name])
            print(f"{name:36} {counts[name]:>13,} instructions  {change:.3f} of the record")
            if change > TOLERANCE:
                grown.append(name)
    if os.environ.get("UPDATE"):
        RECORD.write_text(json.dumps(counts, indent=1) + "\n")
        return 0
    if grown:
        print(f"more instructions than recorded: {', '.join(grown)}", file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    raise SystemExit(main())
