"""The small tokenizer of the embedded backbone: it renders the published prompts, in few tokens.

Every printable ASCII character is a token, so any task's text can be written. On top of that a letter or digit keeps
its leading space (" K", as in the Qwen vocabulary), and the fixed parts of the prompts that lie between them are one
token each, which makes a rule four tokens long.
"""

from __future__ import annotations

import re
import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
LETTERS = tuple(string.ascii_uppercase + string.ascii_lowercase)
PHRASES = ("Rules: (", ") (", ")\nStart:", "\nSteps: ", "\nAnswer:")


def tiny_vocabulary() -> list[str]:
    """Return the tokens in the order of their ids. The order is part of every tiny checkpoint: append, never insert."""
    single = ["\n", *map(chr, range(32, 127))]
    return [PAD, UNKNOWN, END, *single, *(f" {letter}" for letter in LETTERS), *PHRASES]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer: the longest known phrase, else a letter with its leading space, else one character.

    Decoding joins the tokens as they are, so text survives a round trip unchanged.
    """
    vocabulary = {token: index for index, token in enumerate(tiny_vocabulary())}
    phrases = "|".join(re.escape(phrase) for phrase in sorted(PHRASES, key=len, reverse=True))
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{phrases}| [A-Za-z]|[\s\S]"), behavior="isolated")
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
