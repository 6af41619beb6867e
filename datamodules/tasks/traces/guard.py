"""The walls around a running program, put up in the process that is about to run it. None of them can be taken down.

1. `screen` has refused source that reaches for the interpreter's inside.
2. The program's builtins and modules (`allowed`) have no way out.
3. Python's audit hook ends the process at the first event of importing, files, sockets, processes, ctypes, tracing, ...
4. Resource limits: processor time, memory, no file may grow, no descriptor may be opened, no process or thread made.
5. As root: the process becomes the user nobody.
6. On Linux: the kernel refuses every system call that computing does not need (`seccomp`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from datamodules.tasks.traces import seccomp
from datamodules.tasks.traces.limits import Limits

_HARMLESS = """
builtins.id code.__new__ compile exec gc.get_referents object.__getattr__ sys._getframe sys.unraisablehook
"""

HARMLESS = frozenset(_HARMLESS.split())
"""Audit events that the worker itself needs while a program runs, and that lead nowhere by themselves."""

TRACING = frozenset({"sys.settrace", "sys.monitoring.register_callback"})
"""Audit events of the tracer itself, as many as `Guard.tracing` says; a program's own are refused."""

SOURCES = frozenset({"<unknown>", "<program>", "<call>", "<string>"})
"""Names of no file that CPython tries to open for the text of a SyntaxError; the kernel refuses it."""

NOBODY = 65534

Refuse = Callable[[str], None]


def idle_memory() -> int:
    """Return the bytes of address space of this process, 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def limit_process(limits: Limits, idle: int) -> None:
    """Set the kernel's limits; the hard ones too, so that the process cannot raise them.

    Args:
        limits: the limits.
        idle: address space of the process before the program, from `idle_memory`.
    """
    cpu = limits.cpu_seconds
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_NPROC, 0, 0),
        (resource.RLIMIT_NOFILE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))
    if idle:
        resource.setrlimit(resource.RLIMIT_AS, (idle + limits.memory, idle + limits.memory))


def drop_privileges() -> None:
    """Become the user nobody, where the process is root's and root may (in some containers it may not)."""
    if os.getuid() != 0:
        return
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


class Guard:
    """The audit hook.

    Args:
        refuse: called with the name of a forbidden event; it must not return.

    Attributes:
        tracing: audit events of the tracer that are due now.
    """

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse
        self.tracing = 0

    def raise_walls(self, limits: Limits, idle: int) -> None:
        """Put up walls 3 to 6, for good."""
        limit_process(limits, idle)
        drop_privileges()
        # A kernel without filters leaves the other walls, as a system other than Linux does.
        with contextlib.suppress(OSError):
            seccomp.install()
        refuse = self._refuse

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event in HARMLESS:
                return
            if event in TRACING and self.tracing > 0:
                self.tracing -= 1
                return
            if event == "open" and arguments[0] in SOURCES:
                return
            # The import of a codec that is not there is an import, too; its name is what a reader wants to see.
            what = f"{event} {arguments[0]}" if event == "import" and arguments else event
            refuse(what)

        sys.unraisablehook = lambda _: None  # the default one opens source files
        sys.addaudithook(hook)
