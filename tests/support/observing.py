"""What a run tells, kept for a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.run.life_signs import Observer


@dataclass
class Said(Observer):
    """Keeps the warnings."""

    said: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.said.append(line)
