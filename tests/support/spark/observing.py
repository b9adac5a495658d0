"""What a run tells, kept for a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.run.life_signs import CUT, Observer


@dataclass
class Said(Observer):
    """Keeps the warnings, and the faults with the pause after each."""

    said: list[str] = field(default_factory=list)
    faults: list[tuple[str, float | None]] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.said.append(line)

    def cut(self, name: str) -> None:
        self.said.append(f"{name}: {CUT}")

    def fault(self, text: str, *, query: str = "", pause: float | None = None, trace: str = "") -> None:
        self.faults.append((text, pause))
