"""The worker process: a server that forks one guarded child per program.

    python -P -s -S -B -c BOOT ROOT        (`client.Tracer` starts it; it speaks over its standard input and output)

The server imports everything once and never runs a program itself. Each child puts up its walls (`guard`), does one
request, writes one answer into a pipe and exits; whatever the program did to its process ends with it. The server kills
a child that is out of time and turns the way it died into a named error.

Messages are JSON with a length before it (8 bytes, big-endian).
"""

from __future__ import annotations

import codecs
import contextlib
import gc
import json
import os
import select
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from datamodules.tasks.traces.allowed import program_modules
from datamodules.tasks.traces.guard import idle_memory
from datamodules.tasks.traces.jobs import Job, Screen
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.machine.natives import compiled_definitions
from datamodules.tasks.traces.screen import screen

MOST_BYTES = 512 * 2**20
"""Longest answer of a child."""

_CODECS = """
ascii latin_1 utf_8 utf_8_sig utf_16 utf_16_le utf_16_be utf_32 utf_32_le utf_32_be utf_7 cp037 cp437 cp1250
cp1251 cp1252 cp1256 iso8859_2 iso8859_15 koi8_r mac_roman big5 gb2312 gbk gb18030 euc_jp shift_jis euc_kr punycode
unicode_escape raw_unicode_escape charmap hex_codec rot_13
"""

CODECS = tuple(_CODECS.split())
"""Text encodings a program may use; they are imported lazily, which a guarded process can no longer do."""

SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGXCPU: ("CpuLimit", "the processor time is used up"),
    signal.SIGKILL: ("CpuLimit", "the processor time is used up"),
    signal.SIGSEGV: ("Crash", "the interpreter crashed"),
    signal.SIGABRT: ("Crash", "the interpreter gave up"),
}


def main(screening: Screen = screen) -> None:
    """Serve until the input ends."""
    for codec in CODECS:
        codecs.lookup(codec)
    job = Job(program_modules(), screening)
    compiled_definitions()
    gc.collect()
    gc.freeze()  # children share these pages; their collections need not look at them
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    idle = idle_memory()
    while (request := receive(source)) is not None:
        limits = Limits(**request.pop("limits"))
        send(target, _fork(partial(job.run, request, limits, idle), limits))


def receive(descriptor: int) -> dict[str, Any] | None:
    """Read one message; None at the end of the input."""
    header = _read_exactly(descriptor, 8)
    if header is None:
        return None
    body = _read_exactly(descriptor, int.from_bytes(header))
    return None if body is None else json.loads(body)


def send(descriptor: int, body: bytes) -> None:
    """Write one message."""
    data = memoryview(len(body).to_bytes(8) + body)
    while data:
        data = data[os.write(descriptor, data) :]


def _read_exactly(descriptor: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = os.read(descriptor, min(count - len(data), 2**20))
        if not part:
            return None
        data += part
    return bytes(data)


def failure(name: str, reason: str) -> bytes:
    """Return the answer of a program that ended with a named error."""
    return json.dumps({"failure": [name, reason]}).encode()


def _fork(work: Callable[[int], None], limits: Limits) -> bytes:
    """Do the work in a child that has nothing but the writing end of a pipe, and return what it wrote."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 3)
        os.closerange(4, 256)
        work(3)
        os._exit(1)
    os.close(write)
    deadline = time.monotonic() + limits.seconds
    body, error = _collect(read, deadline)
    os.close(read)
    status = _end(child, deadline if error is None else 0.0)
    if error is not None:
        return failure(*error)
    if body and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return body
    if os.WIFSIGNALED(status):
        return failure(*SIGNALS.get(os.WTERMSIG(status), ("Crash", f"signal {os.WTERMSIG(status)}")))
    return failure("Crash", "the process ended without an answer")


def _end(child: int, deadline: float) -> int:
    """Wait for a child until the deadline, then kill it; return its status."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.0005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _collect(read: int, deadline: float) -> tuple[bytes, tuple[str, str] | None]:
    body = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            return b"", ("TimeLimit", "the time is used up")
        part = os.read(read, 2**20)
        if not part:
            return bytes(body), None
        body += part
        if len(body) > MOST_BYTES:
            return b"", ("OutputLimit", f"an answer of more than {MOST_BYTES} bytes")
