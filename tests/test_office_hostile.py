"""Hostile Python programs end within their limits in a named error; this process, files and network see nothing."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from hostile_programs import CASES

from datamodules.tasks.office import sandbox as sandbox_module
from datamodules.tasks.office.errors import ProgramError, Reason, Value
from datamodules.tasks.office.sandbox import PythonSandbox, SandboxLimits

LIMITS = SandboxLimits()
SECRET = "canary"


@pytest.fixture(scope="module")
def sandbox():
    with PythonSandbox(LIMITS) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "canary.txt"
    path.write_text(SECRET)
    return path


def host_state(folder: Path) -> dict[str, object]:
    """What a program could have changed: files with their times, this process's surroundings, its open files."""
    files = {path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode) for path in folder.iterdir()}
    return {
        "files": files,
        "cwd": Path.cwd(),
        "environment": dict(os.environ),
        "modules": set(sys.modules),
        "threads": threading.active_count(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0,
        "recursion": sys.getrecursionlimit(),
        "handlers": signal.getsignal(signal.SIGALRM),
    }


def filled(program: str, fills: bool, canary: Path, port: int) -> str:
    """A program with its places filled in; braces that are Python's own are doubled in the table."""
    for mark, text in (("{canary}", str(canary)), ("{port}", str(port)), ("{{", "{"), ("}}", "}")):
        program = program.replace(mark, text) if fills else program
    return program


def outcome(sandbox: PythonSandbox, program: str) -> tuple[Reason | None, str]:
    try:
        value = sandbox.run(program)
    except ProgramError as error:
        return error.reason, str(error)
    return None, value.text


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_hostile_program(name: str, sandbox: PythonSandbox, listener: socket.socket, canary: Path, capfd) -> None:
    program, reasons, fills = CASES[name]
    program = filled(program, fills, canary, listener.getsockname()[1])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sandbox.run("result = 1")  # so that the process stands, and what is compared below does not hold its start
    before = host_state(canary.parent)
    start = time.monotonic()
    reason, detail = outcome(sandbox, program)
    seconds = time.monotonic() - start
    assert reason in reasons, detail
    assert SECRET not in detail
    assert len(detail) < 300
    assert seconds < LIMITS.wall_seconds + 1
    sandbox.run("result = 1")
    assert host_state(canary.parent) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 * 1024
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert capfd.readouterr() == ("", "")


def test_the_canary_and_the_listener_would_show_it(canary: Path, listener: socket.socket) -> None:
    """What the test above looks at does change when somebody touches it."""
    before = host_state(canary.parent)
    canary.write_text("gone")
    assert host_state(canary.parent) != before
    with socket.create_connection(listener.getsockname()):
        time.sleep(0.05)
        listener.accept()[0].close()


def test_programs_leave_nothing_to_each_other(sandbox: PythonSandbox) -> None:
    sandbox.run("result = add(1, 1)\ndef add(a, b):\n    return 7\nleft = 1\nresult = add(1, 1)")
    assert sandbox.run("result = add(1, 1)") == Value("number", "2")
    assert outcome(sandbox, "result = left") == (Reason.UNKNOWN_NAME, "unknown_name: left")


def test_hung_process_is_ended_and_replaced() -> None:
    with PythonSandbox(SandboxLimits(seconds=0.2, wall_seconds=0.7)) as sandbox:
        sandbox.run("result = 1")
        stopped = sandbox.pid
        os.kill(stopped, signal.SIGSTOP)
        start = time.monotonic()
        assert outcome(sandbox, "result = 1")[0] is Reason.TIME_LIMIT
        assert time.monotonic() - start < 5
        assert sandbox.run("result = 2") == Value("number", "2")
        assert sandbox.pid != stopped


def test_dead_process_is_replaced() -> None:
    with PythonSandbox() as sandbox:
        sandbox.run("result = 1")
        os.kill(sandbox.pid, signal.SIGKILL)
        assert outcome(sandbox, "result = 1")[0] in (Reason.CRASHED, None)
        assert sandbox.run("result = 2") == Value("number", "2")


def test_dead_interpreter_is_replaced() -> None:
    """Monty's own process dies under a limit of the operating system; the next program finds a new one."""
    with PythonSandbox(SandboxLimits(memory=8 * 2**30, process_memory=400 * 2**20)) as sandbox:
        assert outcome(sandbox, "x = 'x' * 10**9")[0] in (Reason.CRASHED, Reason.MEMORY_LIMIT)
        assert sandbox.run("result = 2") == Value("number", "2")


def test_a_result_that_explodes_is_stopped_by_the_process_around_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first wall taken down: a worker that takes over any result, of a program whose result is 100 GB."""
    source = sandbox_module.WORKER.read_text()
    question = "    kind = state.output\n"
    assert source.count(question) == 1
    worker = tmp_path / "worker.py"
    worker.write_text(source.replace(question, '    kind = "text"\n'))
    monkeypatch.setattr(sandbox_module, "WORKER", worker)
    limits = SandboxLimits(process_memory=400 * 2**20)
    program = 'a = "x" * 10**6\nresult = [a] * 10**5'
    with PythonSandbox(limits) as sandbox:
        sandbox.run("result = 1")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.monotonic()
        assert outcome(sandbox, program)[0] in (Reason.MEMORY_LIMIT, Reason.CRASHED, Reason.TIME_LIMIT)
        assert time.monotonic() - start < limits.wall_seconds + 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 * 1024
        assert sandbox.run("result = 2").text == "2"


def test_an_interrupted_call_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: PythonSandbox, seconds: float) -> bytes:
        raise KeyboardInterrupt

    with PythonSandbox() as sandbox:
        sandbox.run("result = 1")
        with monkeypatch.context() as patch:
            patch.setattr(PythonSandbox, "_read", interrupt)
            with pytest.raises(KeyboardInterrupt):
                sandbox.run("result = 1")
        assert sandbox.run("result = 2") == Value("number", "2")


def living(group: int) -> list[str]:
    """Processes of a group that have not ended (one that nobody has waited for yet has)."""
    stats = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
    return [state for state, _, pgrp, *_ in stats if int(pgrp) == group and state not in "ZX"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to list processes")
def test_close_ends_every_process() -> None:
    sandbox = PythonSandbox()
    sandbox.run("result = 1")
    group = sandbox.pid
    assert len(living(group)) == 2
    sandbox.close()
    sandbox.close()
    deadline = time.monotonic() + 5
    while living(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not living(group)


@pytest.mark.parametrize(
    ("limits", "message"), [({"seconds": 0}, "seconds"), ({"memory": -1}, "memory"), ({"seconds": 9}, "wall_seconds")]
)
def test_bad_limits(limits: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SandboxLimits(**limits)
