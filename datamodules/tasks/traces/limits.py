"""What one traced program may use."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one program; whoever reaches one ends with the error named after it.

    Attributes:
        seconds: wall-clock time (`TimeLimit`).
        cpu_seconds: processor time, whole seconds (`CpuLimit`).
        memory: bytes beyond what the idle worker has (`MemoryLimit`).
        events: events of the asked level (`EventLimit`).
        output: characters printed, and of the result's text (`OutputLimit`).
        states: characters of all states together (`StateLimit`).
        depth: calls in progress at a time (`RecursionLimit`).

    Raises:
        ValueError: a limit below 1.
    """

    seconds: float = 10.0
    cpu_seconds: int = 10
    memory: int = 256 * 2**20
    events: int = 200_000
    output: int = 100_000
    states: int = 64 * 2**20
    depth: int = 200

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            low = 0 if name == "seconds" else 1
            if value < low or value == 0:
                raise ValueError(f"limits.{name}: got {value}; it must be {'positive' if low == 0 else '1 or more'}")
