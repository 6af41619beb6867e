"""The kernel's layer: a filter after which the process can compute, use its memory and its open pipe, and nothing else.

Every other system call (open, socket, fork, exec, kill, ...) fails with "operation not permitted", however the program
came to make it. Linux on x86-64 and ARM64; elsewhere the other layers stand alone (`install` returns False).
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


CALLS = {
    "x86_64": {
        "audit": 0xC000003E,
        # read write fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn sched_yield mremap
        # madvise getpid exit getrusage times sigaltstack gettid futex clock_gettime clock_getres exit_group getrandom
        # rseq
        "allowed": _numbers("0 1 5 8 9 10 11 12 13 14 15 24 25 28 39 60 98 100 131 186 202 228 229 231 318 334"),
        # Above it lie the x32 variants of the calls, which must not slip past their numbers.
        "most": 0x3FFFFFFF,
    },
    "aarch64": {
        "audit": 0xC00000B7,
        # The same calls.
        "allowed": _numbers(
            "63 64 80 62 222 226 215 214 134 135 139 124 216 233 172 93 165 153 132 178 98 113 114 94 278 293"
        ),
        "most": 0xFFFFFFFF,
    },
}

LOAD, EQUAL, GREATER, RETURN = 0x20, 0x15, 0x25, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _instruction(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
    return struct.pack("HBBI", code, jump_true, jump_false, value)


def filter_program(machine: str) -> bytes:
    """Return the filter of a machine type as Berkeley Packet Filter code."""
    table = CALLS[machine]
    allowed = table["allowed"]
    assert isinstance(allowed, tuple)
    audit, most = table["audit"], table["most"]
    assert isinstance(audit, int)
    assert isinstance(most, int)
    code = [
        _instruction(LOAD, 0, 0, 4),  # the architecture; another one would number the calls otherwise
        _instruction(EQUAL, 1, 0, audit),
        _instruction(RETURN, 0, 0, KILL),
        _instruction(LOAD, 0, 0, 0),  # the number of the call
        _instruction(GREATER, len(allowed), 0, most),
    ]
    for position, number in enumerate(allowed):
        code.append(_instruction(EQUAL, len(allowed) - position, 0, number))
    code += [_instruction(RETURN, 0, 0, REFUSE), _instruction(RETURN, 0, 0, ALLOW)]
    return b"".join(code)


def install() -> bool:
    """Install the filter in this process, for good.

    Returns:
        Whether this platform has it.

    Raises:
        OSError: the kernel refuses a filter that it should take.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in CALLS:
        return False
    code = filter_program(machine)
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")
    return True
