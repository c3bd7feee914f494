"""The suite may be started in the background of a script."""

import subprocess
import sys

from tests.conftest import ROOT

# As `sh -c 'make test &'` and `nohup` leave them.
IGNORING = "trap '' INT QUIT HUP; exec \"$@\""
PARENT = """
import signal, subprocess, sys
import tests.conftest
for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    signal.raise_signal(each)
child = "import signal; print(*(repr(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)))"
subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_started_with_signals_ignored_the_suite_ignores_them_and_its_children_hear_them() -> None:
    command = ["sh", "-c", IGNORING, "sh", sys.executable, "-c", PARENT]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # Python itself catches the first when it was not ignored.
    assert said.count("default_int_handler") == 1
    assert said.count("SIG_DFL") == 2
