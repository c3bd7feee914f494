"""What a test process hands on to the processes it starts: signals that mean what they always mean.

A shell without job control starts `make test &` with SIGINT and SIGQUIT ignored, and `nohup` adds SIGHUP. That is
inherited through fork and exec, so a Ctrl-C sent to a process under test would not be heard. What is caught, however, is
back at its default after exec: the tests go on not hearing these signals, and their children do.
"""

import signal

OFTEN_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def let_children_hear() -> None:
    for each in OFTEN_IGNORED:
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, lambda *_: None)
