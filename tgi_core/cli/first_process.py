"""Init duties as process 1 of a container, which must reap orphaned processes and ignores signals that have no handler.

Process 1 only forwards signals and reaps; the command runs in a child process. That way, reaping never steals the exit status that
a library is waiting for.
"""

from __future__ import annotations

import os
import signal

_FROM_KERNEL = 0x80
"""`si_code` of a Ctrl-C, which the terminal sends to the whole process group, including the child."""

_LEFT_ALONE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def step_aside() -> None:
    """If this is process 1, fork and return in the child. The parent never returns; it exits with the child's status."""
    if os.getpid() != 1:
        return
    awaited = set(signal.valid_signals()) - _LEFT_ALONE | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    _reap(child)  # children that exited before SIGCHLD was awaited
    while True:
        told = signal.sigwaitinfo(awaited)
        if told.si_signo == signal.SIGCHLD:
            _reap(child)
        elif not (told.si_signo == signal.SIGINT and told.si_code == _FROM_KERNEL):
            os.kill(child, told.si_signo)


def _reap(child: int) -> None:
    """Reap every process that has exited. If `child` is among them, exit with its status."""
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
