"""The process in which generated Python runs, in pydantic-monty; started by `datamodules.tasks.office.sandbox` alone.

It stands on its own (standard library and pydantic-monty) because it runs isolated (`python -I`), with an empty
environment. It reads requests and writes answers as JSON, one a line:

    first line in   {"library": source, "limits": {...}}         see SandboxLimits
    then            {"source": program}
    out             {"ready": true}, then for each program
                    {"kind": "number" or "text", "text": ...}  or  {"reason": ..., "detail": ...}

Monty is an interpreter of its own, in a process of its own, without any access to files, network, modules or
environment: whatever reaches out of it arrives here as a request, and every such request ends the program. What is
left to this process is to take the result over, which a program could make too large: the result's type and size are
asked inside the sandbox first, and the limits set on this process, which Monty's inherits, hold behind that.
"""

from __future__ import annotations

import json
import resource
import secrets
import signal
import sys
from typing import Any

from pydantic_monty import (
    CollectString,
    FunctionSnapshot,
    Monty,
    MontyComplete,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    NameLookupSnapshot,
)

DETAIL = 200

# The name is drawn anew in every process and the sandbox has no globals(): no program can name it.
MEASURE = f"_measure_{secrets.token_hex(16)}"
MEASURE_SOURCE = f"""
def {MEASURE}(value, type=type, int=int, str=str, len=len):
    if type(value) is int:
        return "number" if -10**18 < value < 10**18 else "large"
    if type(value) is str:
        return "text" if len(value) <= 256 else "large"
    return "other"
"""


class Refusal(Exception):  # noqa: N818  (an outcome, not a fault of this process)
    """A program is invalid; the reason is a value of `datamodules.tasks.office.errors.Reason`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail[:DETAIL]
        super().__init__(reason)


def confine(limits: dict[str, Any]) -> None:
    """Limit this process and all that it starts: address space, no file writes, no core dumps."""
    for name, value in (
        (resource.RLIMIT_AS, limits["process_memory"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        try:
            resource.setrlimit(name, (value, value))
        except (ValueError, OSError):  # macOS knows no RLIMIT_AS; Monty's own limits still hold there
            continue


def execute(session: MontySession, library: str, source: str, output: int) -> dict[str, str]:
    """Run one program in a fresh session and take its result over.

    Raises:
        Refusal: the program is invalid.
    """
    session.feed_run(library + MEASURE_SOURCE)
    sink = CollectString(max_bytes=output)
    try:
        state = session.feed_start(source, print_callback=sink)
    except MontyRuntimeError as error:
        raise classified(error, output) from None
    if isinstance(state, FunctionSnapshot) and state.is_os_function:
        raise Refusal("forbidden", state.function_name)
    if isinstance(state, FunctionSnapshot):
        raise Refusal("unknown_name", state.function_name)
    if isinstance(state, NameLookupSnapshot):
        raise Refusal("unknown_name", state.variable_name)
    if not isinstance(state, MontyComplete):
        raise Refusal("forbidden", "waits for the host")
    # The value of the program's last expression is never looked at: reading it would copy it into this process.
    state = session.feed_start(f"{MEASURE}(result)")
    if not isinstance(state, MontyComplete):
        raise Refusal("no_result", "result is not assigned")
    kind = state.output
    if kind not in ("number", "text"):
        raise Refusal("result_too_large" if kind == "large" else "result_type")
    return {"kind": kind, "text": str(session.feed_run("result"))}


def classified(error: MontyRuntimeError, output: int) -> Refusal:
    """Return the named reason of an exception inside the sandbox; only its printed form is read."""
    text = error.display("type-msg")
    name, message = text.partition(":")[::2]
    if name == "TimeoutError" and "limit exceeded" in message:
        return Refusal("time_limit", text)
    if name == "MemoryError":
        # Printed text counts against a cap of its own, which the message names.
        return Refusal("output_limit" if f"> {output} bytes" in message else "memory_limit", text)
    if name == "RecursionError":
        return Refusal("recursion_limit", text)
    if name in ("PermissionError", "ModuleNotFoundError", "ImportError"):
        return Refusal("forbidden", text)
    return Refusal("unsupported" if name == "NotImplementedError" else "exception", text)


def answer(pool: Monty, first: dict[str, Any], source: str) -> dict[str, str]:
    """Answer one request, whatever the program does."""
    limits = first["limits"]
    try:
        with pool.checkout(
            limits={
                "max_feed_duration_secs": limits["seconds"],
                "max_memory": limits["memory"],
                "max_recursion_depth": limits["recursion"],
                "max_suspensions": 4,
                "max_total_sleep_secs": 0.0,
            },
            # Clock, sleep and entropy are requests to the host like files are, and end the program.
            os_policy={"datetime": "call_host", "sleep": "call_host", "random_start": "call_host"},
        ) as session:
            return execute(session, first["library"], source, limits["output"])
    except Refusal as refusal:
        return {"reason": refusal.reason, "detail": refusal.detail}
    except MontySyntaxError as error:
        return {"reason": "syntax_error", "detail": error.display("msg")[:DETAIL]}
    except MontyRuntimeError as error:
        found = classified(error, limits["output"])
        return {"reason": found.reason, "detail": found.detail}
    except MontyCrashedError as error:
        return {"reason": "time_limit" if error.timed_out else "crashed", "detail": str(error)[:DETAIL]}
    except MemoryError:
        return {"reason": "memory_limit", "detail": "the process that runs the sandbox"}
    except (MontyError, ValueError, TypeError, OverflowError, RuntimeError, TimeoutError) as error:
        return {"reason": "crashed", "detail": f"{type(error).__name__}: {error}"[:DETAIL]}


def send(reply: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve requests until the input ends."""
    first = json.loads(sys.stdin.readline())
    limits = first["limits"]
    confine(limits)
    grace = limits["seconds"]
    with Monty(
        min_processes=1,
        max_processes=1,
        checkout_timeout=limits["wall_seconds"],
        request_timeout=limits["seconds"] + grace,
        feed_duration_limit_grace=grace,
    ) as pool:
        send({"ready": True})
        for line in sys.stdin:
            # Ends this process, in native code too, should the parent be gone and unable to do so.
            signal.setitimer(signal.ITIMER_REAL, limits["wall_seconds"] + 5)
            reply = answer(pool, first, json.loads(line)["source"])
            signal.setitimer(signal.ITIMER_REAL, 0)
            send(reply)


if __name__ == "__main__":
    main()
