"""Lets an ordinary model write, and keeps on disk what it wrote, so that a killed evaluation repeats no batch.

Every batch is a file of its own. Its name is the digest of all that its text depends on: model, number types, prompts
and budget. So a benchmark needs no bookkeeping to go on: it asks the same again, and is answered from the files.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from loopformer.evaluation.partial import number_types
from loopformer.files import write_text
from loopformer.generation import Response, end_token_ids, generate_greedy
from loopformer.language_checkpoint import LanguageCheckpoint


class Writer:
    """Greedy continuation of batches of prompts.

    Attributes:
        seconds: wall seconds of all batches so far, those from files included.

    Args:
        checkpoint: the model.
        folder: where finished batches are kept until the caller discards them; None to keep nothing.

    Raises:
        ValueError: the model has no end token.
    """

    def __init__(self, checkpoint: LanguageCheckpoint, folder: Path | None = None) -> None:
        self.seconds = 0.0
        self._lm, self._folder = checkpoint.lm, folder
        self._ends = end_token_ids(checkpoint.lm, checkpoint.tokenizer)
        self._model = [] if folder is None else checkpoint.identity()

    def __call__(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[Response]:
        """Continue prompts, all in one batch.

        Args:
            prompts: token ids, at least one each.
            max_new_tokens: budget of each response.

        Raises:
            ValueError: an empty prompt, or a budget below 1.
        """
        path = self._path(prompts, max_new_tokens)
        if path is None or (kept := _load(path)) is None:
            begin = time.perf_counter()
            responses = generate_greedy(self._lm, prompts, max_new_tokens, self._ends)
            seconds = time.perf_counter() - begin
            if path is not None:
                rows = [asdict(response) for response in responses]
                write_text(path, json.dumps({"seconds": seconds, "responses": rows}), overwrite=True)
        else:
            responses, seconds = kept
        self.seconds += seconds
        return responses

    def _path(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Path | None:
        if self._folder is None:
            return None
        asked = [list(map(int, prompt)) for prompt in prompts]
        types = number_types(self._lm.device.type)
        key = [self._model, types, str(self._lm.dtype), self._ends, asked, max_new_tokens]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self._folder / f"batch_{digest[:32]}.json"


def _load(path: Path) -> tuple[list[Response], float] | None:
    """What a file of a batch holds; None if there is none that can be read."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return [Response(**response) for response in kept["responses"]], float(kept["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
