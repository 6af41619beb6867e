"""Hostile programs: each ends within its limits in a named error, and nothing outside the worker's child notices."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hostile_escapes import ESCAPES
from hostile_functions import HOSTILE, REACHING, TRICKS

from datamodules.tasks.traces.client import ROOT, Tracer
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.outcome import FAILURES

LIMITS = Limits(seconds=20.0, cpu_seconds=1, memory=128 * 2**20, events=20_000)

ALIVE = ("def f(x):\n    return x + 1", "f(41)")


class UnscreenedTracer(Tracer):
    """A worker without the first layer: what the screen would refuse runs against the walls behind it."""

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("-c") + 1] = command[command.index("-c") + 1].replace("main()", "main(lambda _: None)")
        return command


class Canaries:
    """Everything a program could harm: files, the working folder, the network, this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "secret").write_text("secret")
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.port = self._server.getsockname()[1]
        self._before = self._state()

    def _state(self) -> dict:
        return {
            "files": {p.name: (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_mode) for p in self.folder.iterdir()},
            "cwd": (Path.cwd(), sorted(Path.cwd().iterdir())),
            "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
            "threads": threading.active_count(),
            "signals": [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
            "user": (os.getuid(), os.geteuid()),
            "recursion": sys.getrecursionlimit(),
        }

    def connected(self) -> bool:
        try:
            self._server.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def check(self, tracer: Tracer) -> None:
        assert self._state() == self._before
        assert not self.connected()
        if tracer._process is not None and tracer._process.poll() is None:
            pid = tracer._process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children")
            assert not children.exists() or not children.read_text().split()

    def fill(self, source: str) -> str:
        return source.replace("CANARY", str(self.folder)).replace("PORT", str(self.port))

    def close(self) -> None:
        self._server.close()


@pytest.fixture(scope="module")
def canaries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("canary")
    folder.chmod(0o777)  # anyone may write here: it is the walls that must hold, not the folder's mode
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    found = Canaries(folder)
    yield found
    found.close()
    os.chdir(before)


@pytest.fixture(scope="module")
def tracer():
    with Tracer(LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def unscreened():
    with UnscreenedTracer(LIMITS) as found:
        yield found


def cases() -> list:
    """All programs; those that use up their processor time are slow."""
    return [
        pytest.param(name, marks=pytest.mark.slow if error == "CpuLimit" else ())
        for name, (error, _) in HOSTILE.items()
    ]


@pytest.mark.parametrize("name", cases())
def test_every_program_ends_in_its_error_and_harms_nothing(name, tracer, canaries):
    error, source = HOSTILE[name]
    begin = time.monotonic()
    trace = tracer.trace(canaries.fill(source), "f()")
    assert time.monotonic() - begin < LIMITS.seconds + 5
    assert trace.failure is not None
    assert trace.failure.name in error.split("|")
    assert trace.failure.name in FAILURES
    assert trace.failure.reason
    assert trace.result is None
    canaries.check(tracer)
    assert tracer.trace(*ALIVE).result == "42"


def test_there_are_enough_programs():
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("name", [name for name, _, _ in REACHING + TRICKS])
def test_the_inner_walls_hold_without_the_screen(name, unscreened, canaries):
    unscreened.trace(canaries.fill(HOSTILE[name][1]), "f()")
    canaries.check(unscreened)
    assert unscreened.trace(*ALIVE).result == "42"


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_past_the_screen_ends_at_the_walls(name, unscreened, canaries):
    trace = unscreened.trace(canaries.fill(ESCAPES[name]), "f()")
    assert trace.failure is not None
    assert trace.failure.name in FAILURES
    canaries.check(unscreened)
    assert unscreened.trace(*ALIVE).result == "42"


@pytest.mark.parametrize("name", ["os_open", "os_fork", "ctypes", "subprocess", "settrace_off"])
def test_the_escapes_end_because_of_the_audit_hook(name, unscreened, canaries):
    """Not because the program has a mistake: it reaches the module and is stopped at the deed."""
    failure = unscreened.trace(canaries.fill(ESCAPES[name]), "f()").failure
    assert failure.name == "Forbidden"
    assert failure.reason.split()[0] in ("open", "os.fork", "ctypes.dlopen", "import", "sys.settrace")


def test_the_canaries_notice(tmp_path, tracer):
    """The checks above can fail: a write and a connection are seen."""
    watched = Canaries(tmp_path)
    watched.check(tracer)
    socket.create_connection(("127.0.0.1", watched.port)).close()
    assert watched.connected()
    (tmp_path / "x").write_text("x")
    with pytest.raises(AssertionError):
        watched.check(tracer)
    watched.close()


KERNEL = """
import errno, os, socket, sys
sys.path.insert(0, {root!r})
from datamodules.tasks.traces import seccomp
from datamodules.tasks.traces.guard import drop_privileges, idle_memory, limit_process
from datamodules.tasks.traces.limits import Limits
parts = sys.argv[1].split("+")
idle = idle_memory()
if "limits" in parts:
    limit_process(Limits(memory=64 * 2**20), idle)
if "user" in parts:
    drop_privileges()
if "filter" in parts and not seccomp.install():
    print("no filter")
    sys.exit()
def attempt(name, deed):
    try:
        deed()
        print(name, "done")
    except (OSError, MemoryError) as error:
        print(name, "refused")
attempt("open", lambda: os.open({canary!r}, os.O_RDONLY))
attempt("write", lambda: os.open({canary!r} + "x", os.O_CREAT | os.O_WRONLY))
attempt("socket", lambda: socket.socket())
attempt("fork", lambda: os.fork() or os._exit(0))
attempt("kill", lambda: os.kill(os.getppid(), 0))
attempt("memory", lambda: bytearray(2**30))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system-call filter is Linux's")
@pytest.mark.parametrize(
    ("layers", "refused"),
    [
        ("none", set()),
        ("filter", {"open", "write", "socket", "fork", "kill"}),
        ("limits+user", {"open", "write", "socket", "fork", "memory"}),
        ("limits+user+filter", {"open", "write", "socket", "fork", "kill", "memory"}),
    ],
)
def test_the_kernel_refuses_without_any_help_from_python(layers, refused, tmp_path):
    (tmp_path / "secret").write_text("secret")
    code = KERNEL.format(root=str(ROOT), canary=str(tmp_path / "secret"))
    done = subprocess.run([sys.executable, "-c", code, layers], capture_output=True, text=True, timeout=60, check=True)
    if "no filter" in done.stdout:
        pytest.skip("no system-call filter for this machine type")
    said = dict(line.split() for line in done.stdout.splitlines())
    assert len(said) == 6
    assert refused <= {name for name, outcome in said.items() if outcome == "refused"}
    if layers == "none":
        assert set(said.values()) == {"done"}


def test_a_dead_worker_is_replaced():
    with Tracer(LIMITS) as tracer:
        assert tracer.trace(*ALIVE).result == "42"
        first = tracer._process.pid
        os.kill(first, signal.SIGKILL)
        assert tracer.trace(*ALIVE).failure is None or tracer.trace(*ALIVE).result == "42"
        assert tracer._process.pid != first


def test_a_closed_tracer_leaves_no_process():
    tracer = Tracer(LIMITS)
    assert tracer.trace(*ALIVE).result == "42"
    pid = tracer._process.pid
    tracer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_wall_clock():
    """A program that sleeps or waits uses no processor time; the clock ends it."""
    with Tracer(Limits(seconds=0.5, cpu_seconds=30, events=10**9)) as tracer:
        begin = time.monotonic()
        trace = tracer.trace("def f():\n    return 7 ** (10 ** 9)", "f()")
        assert trace.failure.name == "TimeLimit"
        assert time.monotonic() - begin < 10
        assert tracer.trace(*ALIVE).result == "42"


@pytest.mark.parametrize(
    ("limit", "name"),
    [("events", "EventLimit"), ("output", "OutputLimit"), ("states", "StateLimit"), ("depth", "RecursionLimit")],
)
def test_each_limit_has_its_error(limit, name):
    source = """def f(n):
    print("x" * 60)
    return 0 if n == 0 else f(n - 1)
"""
    with Tracer(Limits(**{limit: 50})) as tracer:
        assert tracer.trace(source, "f(60)", states=True).failure.name == name
    with Tracer() as tracer:
        assert tracer.trace(source, "f(60)", states=True).result == "0"


@pytest.mark.parametrize("value", [0, -1])
def test_limits_are_checked(value):
    with pytest.raises(ValueError, match=r"limits\.memory: got"):
        Limits(memory=value)
