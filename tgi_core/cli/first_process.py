"""Being process 1 of a container: it gets every orphan, must reap what it never started, and no signal ends it by default.

So there it only forwards signals and reaps, and the command runs in a child: a library that waits for its own processes is never robbed
of their status.
"""

from __future__ import annotations

import os
import signal

_FROM_KERNEL = 0x80
"""`si_code` of a Ctrl-C: the terminal sends it to the whole group, the child included."""

_LEFT_ALONE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def step_aside() -> None:
    """As process 1, go on as a child of it; the first process ends with the child's status, and never returns from here."""
    if os.getpid() != 1:
        return
    awaited = set(signal.valid_signals()) - _LEFT_ALONE | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    _reap(child)  # who ended before there was a signal to wait for
    while True:
        told = signal.sigwaitinfo(awaited)
        if told.si_signo == signal.SIGCHLD:
            _reap(child)
        elif not (told.si_signo == signal.SIGINT and told.si_code == _FROM_KERNEL):
            os.kill(child, told.si_signo)


def _reap(child: int) -> None:
    """Take the status of every process that has ended; end with the child, as it has ended."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not pid:
            break
        if pid == child:
            ended = status
    if ended is not None:
        code = os.waitstatus_to_exitcode(ended)
        os._exit(code if code >= 0 else 128 - code)
