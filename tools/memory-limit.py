#!/usr/bin/env python3
"""Times a model under memory limits below its size: weights left to the system (`--memory-budget 1T`), and kept
within the budget that shamrock chooses by itself. Root, Linux, control groups of version 1 or 2.

    tools/memory-limit.py SHAMROCK MODEL [PERCENT...]      limits in percent of the file [default: 75 50 25]
"""

import json
import os
import subprocess
import sys
from pathlib import Path

UNMANAGED = ["--memory-budget", "1T"]


def group():
    """A new control group, and the name of its limit."""
    v1 = Path("/sys/fs/cgroup/memory")
    root, name = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v1.parent, "memory.max")
    group = root / f"shamrock-limit-{os.getpid()}"
    group.mkdir()
    return group, group / name


def bench(shamrock, model, flags, group=None):
    """Results of `shamrock bench` by work. In a group, the file's cached pages are dropped first: those that
    somebody else has read would not count against its limit."""
    with open(model, "rb") as file:
        if group:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    enter = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
    command = [shamrock, "bench", model, "--backend", "cpu", "--rows", "32", "--commit", "256"]
    command += ["--repeat", "3", "--json", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def tell(limit, how, results):
    for m in results:
        held, fetched = m["expert_hits"], m["expert_misses"]
        print(
            f"{limit:<6} {how:<10} {m['work']:<8} {m['median_ms']:9.0f} ms   experts held {held:5}, fetched {fetched:5}"
            f"   first token {m.get('first_pass_ms', 0):7.0f} ms"
            f"   beside the file {m.get('anonymous_bytes', 0) / 1e6:5.0f} MB",
            flush=True,
        )


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    shamrock, model, percents = sys.argv[1], sys.argv[2], sys.argv[3:] or ["75", "50", "25"]
    bench(shamrock, model, [])  # the file is cached now
    tell("none", "-", bench(shamrock, model, []))
    where, limit = group()
    try:
        for percent in percents:
            limit.write_text(str(Path(model).stat().st_size * int(percent) // 100))
            for how, flags in ("system", UNMANAGED), ("budget", []):
                tell(f"{percent} %", how, bench(shamrock, model, flags, where))
    finally:
        where.rmdir()


if __name__ == "__main__":
    main()
