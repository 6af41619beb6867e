"""The office programs asked of a language model: batched generation, execution, scores.

    python evaluate.py --checkpoint runs/program_office/model --benchmark program --program.part office --output OUT
    python evaluate.py --checkpoint Qwen/Qwen2.5-0.5B-Instruct --benchmark program --program.part office \
                       --program.office.arm few_shot_stack --output OUT

Writes outputs.jsonl (all that the model wrote; `loopformer.evaluation.office_outputs` scores it again without the
model), scores.jsonl, table.md and summary.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datamodules.tasks.office.arms import ARMS, Arm, TrainedPrompt, find_arm, prompt, second_prompt
from datamodules.tasks.office.items import FAMILIES, OfficeItem
from datamodules.tasks.office.sandbox import PythonSandbox
from datamodules.tasks.office.scoring import run_output
from datamodules.tasks.office.splits import SPLITS, evaluation
from datamodules.text import TextEncoder
from loopformer.evaluation.name_list import names_in, read_names
from loopformer.evaluation.office_outputs import OfficeOutput, score_outputs, write_results
from loopformer.evaluation.partial import PARTIAL, discard
from loopformer.evaluation.writer import Writer
from loopformer.files import OUTPUTS, refuse_finished, write_json_lines
from loopformer.language_checkpoint import LanguageCheckpoint

TRAINED = "trained"
BLANK_LINE = "\n\n"
"""Where a response ends if the model was not trained for the arm and has no chat template: tasks are apart by it."""


@dataclass
class OfficeOptions:
    """What to ask, and how.

    Attributes:
        arm: name of the arm; "trained" is the one the model was trained for.
        splits: names of the splits, apart by commas; "combination" has 1,152 items, the others 96 each.
        per_family: first items of each family of each split; None for all.
        listing: list the instructions in the prompt; None for what the model was trained with, yes for others.
        seed: training seed that the results are filed under; None for the one the model's folder tells, or 0.
        batch_size: prompts of one batch.
        max_new_tokens: budget of each call of the model.
    """

    arm: str = TRAINED
    splits: str = "in-distribution,composition,shift"
    per_family: int | None = None
    listing: bool | None = None
    seed: int | None = None
    batch_size: int = 32
    max_new_tokens: int = 192

    def __post_init__(self) -> None:
        if self.arm != TRAINED:
            find_arm(self.arm)
        for name in ("batch_size", "max_new_tokens", "per_family"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: needs at least 1, got {value}")
        read_names("splits", self.splits, SPLITS)

    @property
    def split_names(self) -> list[str]:
        """The splits, in the order given."""
        return names_in(self.splits)


@dataclass(frozen=True)
class Written:
    """What a model wrote in one call."""

    text: str
    tokens: int


def evaluate_office(
    checkpoint: LanguageCheckpoint,
    options: OfficeOptions,
    output: Path,
    advance: Callable[[int], object],
    begin: Callable[[int], object],
    overwrite: bool = False,
) -> dict[str, Any]:
    """Ask, score and write the results.

    Args:
        checkpoint: the model.
        options: arm, splits and budget.
        output: folder for the results.
        advance: called with the number of calls of the model finished.
        begin: called once with the number of all calls.
        overwrite: replace results that the folder holds.

    Raises:
        ValueError: the arm is "trained", and the model's folder does not tell which that is.
        FileExistsError: there are results already and `overwrite` is False.
    """
    refuse_finished(output, overwrite)  # before the model writes for nothing
    asked = find_prompt(checkpoint, options)
    arm = ARMS[asked.arm]
    items = [item for name in options.split_names for item in _chosen(name, options.per_family)]
    seed = int(checkpoint.provenance.get("seed", 0)) if options.seed is None else options.seed
    begin(len(items) * arm.turns)
    writer = Writer(checkpoint, output / PARTIAL)
    with PythonSandbox() as sandbox:
        outputs = ask(checkpoint, writer, arm, asked.listing, items, seed, options, sandbox, advance)
        write_json_lines(output / OUTPUTS, map(asdict, outputs), overwrite=True)
        scored = score_outputs(outputs, sandbox)
    more = {
        "benchmark": "program",
        "part": "office",
        "checkpoint": checkpoint.source,
        "model": checkpoint.digests(),
        "listing": asked.listing,
        "max_new_tokens": options.max_new_tokens,
        "per_family": options.per_family,
    }
    summary = write_results(output, scored, more, overwrite=True)
    discard(output / PARTIAL)
    return summary


def find_prompt(checkpoint: LanguageCheckpoint, options: OfficeOptions) -> TrainedPrompt:
    """Resolve arm and listing.

    Raises:
        ValueError: the arm is "trained", and the model's folder does not tell which that is.
    """
    trained = TrainedPrompt.parse(checkpoint.provenance.get("text_style"))
    if options.arm == TRAINED and trained is None:
        raise ValueError(
            f"arm: {checkpoint.source} does not tell its arm; choose --program.office.arm, such as zero_shot_stack"
        )
    arm = trained.arm if options.arm == TRAINED and trained is not None else options.arm
    listing = options.listing
    if listing is None:
        listing = trained.listing if trained is not None else True
    return TrainedPrompt(arm, listing)


def ask(
    checkpoint: LanguageCheckpoint,
    writer: Writer,
    arm: Arm,
    listing: bool,
    items: Sequence[OfficeItem],
    seed: int,
    options: OfficeOptions,
    sandbox: PythonSandbox,
    advance: Callable[[int], object],
) -> list[OfficeOutput]:
    """Let the model write for every item, in one call or two."""
    firsts = [prompt(item, arm, listing) for item in items]
    written = write(checkpoint, writer, firsts, arm, options, advance)
    seconds: list[Written | None] = [None] * len(items)
    if arm.executed:
        results = [run_output(one.text, arm, sandbox) for one in written]
        again = [
            second_prompt(first, one.text, result) for first, one, result in zip(firsts, written, results, strict=True)
        ]
        seconds = list(write(checkpoint, writer, again, arm, options, advance))
    return [
        OfficeOutput(
            item.name,
            arm.name,
            seed,
            one.text,
            None if two is None else two.text,
            one.tokens + (0 if two is None else two.tokens),
        )
        for item, one, two in zip(items, written, seconds, strict=True)
    ]


def write(
    checkpoint: LanguageCheckpoint,
    writer: Writer,
    prompts: Sequence[str],
    arm: Arm,
    options: OfficeOptions,
    advance: Callable[[int], object],
) -> list[Written]:
    """Continue prompts greedily, prompts of like length together."""
    encoder = TextEncoder(checkpoint.tokenizer)
    ids = encoder.encode([encoder.chat(text) for text in prompts])
    plain = not arm.trained and checkpoint.tokenizer.chat_template is None
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    written: dict[int, Written] = {}
    for start in range(0, len(order), options.batch_size):
        rows = order[start : start + options.batch_size]
        responses = writer([ids[row] for row in rows], options.max_new_tokens)
        for row, response in zip(rows, responses, strict=True):
            text = str(checkpoint.tokenizer.decode(response.ids))
            written[row] = Written(text.partition(BLANK_LINE)[0] if plain else text, response.tokens)
        advance(len(rows))
    return [written[row] for row in range(len(ids))]


def _chosen(split: str, per_family: int | None) -> list[OfficeItem]:
    """First items of each family; every wording of an item of the combination split counts as one item."""
    items = evaluation(split)
    if per_family is None:
        return list(items)
    counts = dict.fromkeys(FAMILIES, 0)
    chosen = []
    for item in items:
        if counts[item.family] < per_family:
            counts[item.family] += 1
            chosen.append(item)
    return chosen
