"""The vocabulary of the machine prompts: words that are one token each, with their leading space.

Every word is a single token both of the embedded tokenizer and of Qwen's, so a prompt has the same number of tokens
whatever it says and a batch of prompts is filled in by indexing. Machines hold word numbers everywhere.
"""

from __future__ import annotations

from string import ascii_uppercase

import numpy as np

from datamodules.tasks.procedure import LabelSet

STATES = tuple(ascii_uppercase)
"""States, nodes and values: the visible labels, numbered like the letters of the graph task."""

SYMBOLS = ("s", "t", "u", "v")
COLOURS = ("red", "blue", "green", "gold")
REGISTERS = ("w", "x", "y", "z")
BITS = ("no", "yes")
OPCODES = ("SET", "MOV", "INC", "DEC", "EQ", "NE", "PUSH", "POP", "DUP")

END, NONE = "END", "nil"
"""The name (and symbol, and opcode) after the last one, and an operand that is not there."""

_UNSPLITTABLE = frozenset({"aq", "gk"})  # two tokens in Qwen's vocabulary
NAMES = tuple(a + b for a in "abcdefg" for b in ascii_uppercase.lower() if a + b not in _UNSPLITTABLE)[:160]
"""Names of cells and lines."""

UNSEEN_NAMES = NAMES[::5]
"""The 32 names that no training data contain."""

TRAINED_NAMES = tuple(name for name in NAMES if name not in UNSEEN_NAMES)
"""The 128 names of the training data, in the order in which a curriculum opens them."""

WORDS = (*STATES, END, NONE, *SYMBOLS, *COLOURS, *REGISTERS, *OPCODES, *BITS, *NAMES)
"""Every word by its number."""

TEXTS = tuple(f" {word}" for word in WORDS)

_NUMBER = {word: number for number, word in enumerate(WORDS)}
END_WORD, NONE_WORD = _NUMBER[END], _NUMBER[NONE]


def numbers(words: tuple[str, ...]) -> np.ndarray:
    """[len(words)] int16 numbers of some words."""
    return np.array([_NUMBER[word] for word in words], dtype=np.int16)


def label_set(words: tuple[str, ...]) -> LabelSet:
    """The words as labels, each with a leading space as its text."""
    return LabelSet(words, tuple(f" {word}" for word in words))


def lookup(words: tuple[str, ...]) -> np.ndarray:
    """[len(WORDS)] int64 position of every word in `words`, -1 where it is not among them."""
    table = np.full(len(WORDS), -1, dtype=np.int64)
    table[numbers(words)] = np.arange(len(words))
    return table
