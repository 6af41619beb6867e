"""The small tokenizer of the embedded backbone: it renders the published prompts, in few tokens.

Every printable ASCII character is a token, so any task's text can be written. On top of that a letter or digit keeps
its leading space (" K", as in the Qwen vocabulary), and the fixed parts of the prompts that lie between them are one
token each, which makes a rule four tokens long.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from datamodules.tasks.grammar.moves import PHRASES as GRAMMAR_MOVES
from datamodules.tasks.machines.renderings import PHRASES as MACHINE_TEXT
from datamodules.tasks.machines.words import TEXTS as MACHINE_WORDS

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
LETTERS = tuple(string.ascii_uppercase + string.ascii_lowercase)
WORD_LISTS: dict[str, Sequence[str]] = {"machines": MACHINE_WORDS, "machine_text": (), "moves": ()}
"""Whole words, each with its leading space, that a task's prompts need as one token, by the name of the list."""

WORD_LIST_PHRASES = {
    "machines": ("Rules:", "\nTape:", "Program:", "\nRegisters:", "\nStack:", "\nStart:"),
    "machine_text": MACHINE_TEXT,
    "moves": GRAMMAR_MOVES,
}
"""Fixed parts of a task's texts, one token each in the embedded tokenizer; others cut them as they like."""

PHRASES = ("Rules: (", ") (", ")\nStart:", "\nSteps: ", "\nAnswer:")


def word_list(names: Sequence[str]) -> list[str]:
    """Return the words of some lists, each once.

    Raises:
        ValueError: there is no such list.
    """
    for name in names:
        if name not in WORD_LISTS:
            raise ValueError(f"backbone.words: got {name!r}; use some of {', '.join(WORD_LISTS)}")
    return list(dict.fromkeys(word for name in names for word in WORD_LISTS[name]))


def tiny_words(names: Sequence[str]) -> list[str]:
    """Return what the embedded tokenizer learns for some lists: their words and phrases, each once.

    Raises:
        ValueError: there is no such list.
    """
    phrases = [phrase for name in names for phrase in WORD_LIST_PHRASES.get(name, ())]
    return list(dict.fromkeys([*word_list(names), *phrases]))


def check_words(tokenizer: PreTrainedTokenizerBase, names: Sequence[str]) -> None:
    """Make sure that every word of some lists is one token.

    Raises:
        ValueError: one is not.
    """
    words = word_list(names)
    ids = tokenizer(words, add_special_tokens=False)["input_ids"] if words else []
    for word, tokens in zip(words, ids, strict=True):
        if len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id:
            raise ValueError(f"backbone.words: {word!r} is {len(tokens)} tokens here; use a tokenizer that knows it")


def tiny_vocabulary(words: Sequence[str] = ()) -> list[str]:
    """Return the tokens in the order of their ids. The order is part of every tiny checkpoint: append, never insert."""
    single = ["\n", *map(chr, range(32, 127))]
    known = [PAD, UNKNOWN, END, *single, *(f" {letter}" for letter in LETTERS), *PHRASES]
    return [*known, *(word for word in words if word not in known)]


def tiny_tokenizer(words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build the tokenizer: the longest known phrase, else a letter with its leading space, else one character.

    Decoding joins the tokens as they are, so text survives a round trip unchanged.

    Args:
        words: further words with their leading space that are one token each where they stand alone.
    """
    vocabulary = {token: index for index, token in enumerate(tiny_vocabulary(words))}
    parts = [re.escape(phrase) for phrase in sorted(PHRASES, key=len, reverse=True)]
    if words:
        parts.append(rf"(?:{'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})(?![A-Za-z])")
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*parts, " [A-Za-z]", r"[\s\S]"])), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(source: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or the Hub, as it was saved.

    `AutoTokenizer` alone gives every model of the Qwen2 type a tokenizer of the Qwen2 class, which replaces the rules
    of a generic one, such as the embedded backbone's.

    Args:
        source: folder or Hub id.
        revision: commit of the Hub repository.
    """
    declared = get_tokenizer_config(source, revision=revision).get("tokenizer_class")
    generic = declared in ("TokenizersBackend", "PreTrainedTokenizerFast")
    loader = PreTrainedTokenizerFast if generic else AutoTokenizer
    tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(source, revision=revision or "main")
    return tokenizer
