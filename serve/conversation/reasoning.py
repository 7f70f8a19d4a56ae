"""What a model writes for itself before it answers, told from the answer by its marks."""

from __future__ import annotations

from dataclasses import dataclass

from .pieces import Piece, Reasoning, Text

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """The marks of one style: which text begins reasoning, which begins the answer."""

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    drops: tuple[str, ...] = ()  # marks that carry no text of their own

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return self.opens + self.closes + self.drops

    @property
    def special_marks(self) -> tuple[str, ...]:
        """Those parts of the marks that a tokenizer may have as tokens of their own."""
        return ("<|channel|>",) if self.name == "channel" else self.opens + self.closes

    @property
    def close(self) -> str:
        """The mark that a model ends its reasoning with."""
        return self.closes[0]


STYLES = (
    ReasoningStyle("think", ("<think>",), ("</think>",)),
    ReasoningStyle("thinking", ("<thinking>",), ("</thinking>",)),
    ReasoningStyle("reasoning", ("<reasoning>",), ("</reasoning>",)),
    ReasoningStyle("bracket", ("[THINK]",), ("[/THINK]",)),
    ReasoningStyle("thinking tokens", ("<|START_THINKING|>",), ("<|END_THINKING|>",)),
    ReasoningStyle(
        "channel",
        ("<|channel|>analysis<|message|>",),
        ("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
        ("<|start|>assistant", "<|end|>", "<|return|>"),
    ),
)


def detect_reasoning(template: str) -> ReasoningStyle | None:
    """Return the style a chat template speaks; None if it knows of no reasoning."""
    for style in STYLES:
        if style.name == "channel":
            if "<|channel|>" in template and "analysis" in template:
                return style
        elif style.close in template:
            return style
    return None


def starts_in_reasoning(style: ReasoningStyle, prompt: str) -> bool:
    """Return whether a rendered prompt ends inside reasoning that the template began."""
    return prompt.rstrip().endswith(style.opens)


class ReasoningSplitter:
    """Splits text that arrives in pieces of any size; the result does not depend on the cuts.

    White space at both ends of the reasoning, and before the answer after it, is dropped.
    """

    def __init__(self, style: ReasoningStyle, inside: bool = False) -> None:
        self._style = style
        self._inside = inside
        self._leading = inside  # no visible character since the last mark
        self._held = ""  # what may become a mark
        self._space = ""  # of reasoning: shown when more of it follows
        self._pieces: list[Piece] = []

    def push(self, text: str) -> list[Piece]:
        """Take a piece of text; return what is certain with it."""
        marks = self._style.marks
        for char in text:
            self._held += char
            while self._held and not any(mark.startswith(self._held) for mark in marks):
                first, self._held = self._held[0], self._held[1:]
                self._give(first)
            if self._held in marks:
                self._turn(self._held)
                self._held = ""
        return self._take()

    def flush(self) -> list[Piece]:
        """Return what is held; the text has ended."""
        for char in self._held:
            self._give(char)
        self._held = ""
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _turn(self, mark: str) -> None:
        if mark in self._style.drops:
            return
        self._inside = mark in self._style.opens
        self._leading = True
        self._space = ""

    def _give(self, char: str) -> None:
        if char in _SPACE and (self._leading or self._inside):
            self._space += "" if self._leading else char
            return
        self._leading = False
        if self._inside:
            self._pieces.append(Reasoning(self._space + char))
            self._space = ""
        else:
            self._pieces.append(Text(char))
