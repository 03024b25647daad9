"""What the scripts that drive `shamrock serve` share: a server over clover-nano, and checks that stop at the
first failure."""

import re
import subprocess
import sys


def start(program):
    server = subprocess.Popen([program, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"on (http://\S+?),", line):
            return server, found[1]
    sys.exit("the server did not start")


def check(name, holds, what=None):
    print(f"{'ok' if holds else 'FAILED'}  {name}" + ("" if holds else f": {what!r}"))
    if not holds:
        sys.exit(1)
