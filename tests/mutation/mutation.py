"""What a mutation is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of the source that breaks a rule.

    Parameters
    ----------
    rule
        The rule, in a sentence.
    file
        The source file, from the repository's root.
    text
        What is replaced. It must occur once in the file.
    replacement
        What replaces it.
    tests
        Node ids of the tests that must fail, each of them.
    """

    rule: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    def applied_to(self, root: Path) -> str:
        """Return the mutated content of the file. Raises ValueError if the text does not occur once."""
        path = root / self.file
        if not path.is_file():
            raise ValueError(f"{self.file} does not exist")
        content = path.read_text("utf-8")
        if (count := content.count(self.text)) != 1:
            raise ValueError(f"occurs {count} times in {self.file}: {self.text!r}")
        return content.replace(self.text, self.replacement)
