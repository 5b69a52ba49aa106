"""What a process costs before it does anything: the CPU time and the memory of its start.

    python -m bench.starts [rounds]

Each line is one kind of process, the best of some rounds, beside importing Flask, SQLAlchemy,
marshmallow and Authlib alone. It reads compiled modules: the first round writes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LOADED = "import app; app.create_app().load()"
STARTS = {
    "The libraries alone": "import flask, sqlalchemy, marshmallow, authlib",
    "`import app`": "import app",
    "`create_app()`": "import app; app.create_app()",
    "`bin/atrium --help`": "import sys; sys.argv[1:] = ['--help']\n"
    "from app.ops.main import main; main()",
    "Features: commands, workers": "import app; app.create_app().app_context()",
    "Routes, too: servers, before they fork": LOADED,
}
# Prints the peak of its memory; that of `wait4` includes the process that started it.
PRINT_PEAK = """
import atexit, re, sys
atexit.register(lambda: print(re.search("VmHWM:.*?([0-9]+)", open("/proc/self/status").read())[1],
                              file=sys.stderr))
"""


def cost(start: str, rounds: int) -> tuple[float, float]:
    """The seconds of CPU time and the MiB of memory of a start, at best."""
    command = [sys.executable, "-c", f"{PRINT_PEAK}{STARTS[start]}"]
    seconds, kibibytes = [], []
    with tempfile.TemporaryDirectory() as folder:
        env = {"PATH": os.environ["PATH"], "SERVICE_INSTANCE_DIR": folder}
        for _ in range(rounds):
            before = os.times()
            done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, check=True)  # noqa: S603
            after = os.times()
            seconds.append(sum(after[2:4]) - sum(before[2:4]))
            kibibytes.append(int(done.stderr.split()[-1]))
    return min(seconds), min(kibibytes) / 1024


def main(rounds: int = 5) -> None:
    """Print the table of docs/performance.md."""
    print("| | CPU | Memory |\n|---|---|---|")  # noqa: T201
    reference = 0.0
    for name in STARTS:
        seconds, mebibytes = cost(name, rounds)
        reference = reference or seconds
        print(f"| {name} | {seconds / reference:.1f} | {mebibytes:.0f} MiB |")  # noqa: T201


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
