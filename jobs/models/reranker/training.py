"""Fine-tunes an encoder as a cross-encoder: a query and a passage in, one score out. Needs torch and transformers.

Each example is one positive among sampled negatives. The loss is the cross-entropy of picking the positive, which
orders them, plus the binary one of each passage, which gives scores a zero: the sigmoid of a score is then about the
chance that the passage answers. Word embeddings stay as they are: few words are seen often enough to improve them.

The learning rate falls to 0 at the end of the time budget or of the last epoch, whichever comes first, so that a
shorter budget gives a finished model too. A checkpoint is saved every few minutes, and an interrupted run resumes from
it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.base.errors import InvalidInput, NotFound
from jobs.models.export.sources import Progress
from jobs.models.reranker.mining import TrainingExample

CHECKPOINT = "checkpoint.pt"
CHECKPOINT_EVERY_S = 180.0
LINE_EVERY_STEPS = 50
SORTED_BATCHES = 32  # batches whose examples are sorted by length together: less padding, still random
RUNS_A_STEP = 4
WARM_UP = 0.06  # of the run
WEIGHT_DECAY = 0.01
GRADIENT_NORM_MAX = 1.0


@dataclass(frozen=True)
class TrainingOptions:
    """How to train: `examples` per step, each with `negatives`; pairs are truncated to `tokens_max`. The same `seed`
    reproduces a run exactly unless `minutes` ended it."""

    minutes: float = 60.0
    epochs: int = 3
    examples: int = 8
    negatives: int = 4
    tokens_max: int = 128
    rate: float = 5e-5
    seed: int = 0
    bf16: bool = False


def train(source: Path, examples: Sequence[TrainingExample], out: Path, options: TrainingOptions, progress: Progress) -> None:
    """Write the cross-encoder, trained from the encoder in `source`, to `out`: config, tokenizer and safetensors.

    Raises NotFound without torch and transformers, InvalidInput for too few examples.
    """
    if len(examples) < options.examples:
        raise InvalidInput(
            f"{len(examples)} examples are too few to train on, expected {options.examples} or more"
        )
    out.mkdir(parents=True, exist_ok=True)
    run = TrainingRun(source, out, options)
    if run.step:
        progress(f"going on from step {run.step}")
    steps = options.epochs * (len(examples) // options.examples)
    saved = time.monotonic()
    losses, firsts = 0.0, 0.0
    for batch in batches(examples, options, run.step):
        done = max(run.step / steps, run.spent_s / (60 * options.minutes))
        if done >= 1:
            break
        loss, first = run.learn(batch, options.rate * min(done / WARM_UP, (1 - done) / (1 - WARM_UP)))
        losses, firsts = losses + loss, firsts + first
        if run.step % LINE_EVERY_STEPS == 0:
            loss, first = losses / LINE_EVERY_STEPS, firsts / LINE_EVERY_STEPS
            progress(
                f"step {run.step} of {steps}, {done:.0%} of the budget: loss {loss:.3f}, positive first {first:.3f}"
            )
            losses = firsts = 0.0
        if time.monotonic() - saved > CHECKPOINT_EVERY_S:
            run.save()
            saved = time.monotonic()
    run.finish()


class TrainingRun:
    """The model and its optimizer, from the checkpoint in `out` if there is one. `step` counts the steps taken."""

    def __init__(self, source: Path, out: Path, options: TrainingOptions) -> None:
        """Raises NotFound without torch and transformers."""
        try:
            import torch
            import transformers
        except ImportError as error:
            raise NotFound(
                f"training needs torch and transformers: pip install torch transformers ({error})"
            ) from None
        torch.manual_seed(options.seed)
        self._torch, self._out, self._options = torch, out, options
        # `source` is a folder: models from the hub were fetched before.
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(source, local_files_only=True)  # nosec B615 # local
        self._model = transformers.AutoModelForSequenceClassification.from_pretrained(  # nosec B615 # local
            source, num_labels=1, local_files_only=True
        )
        self._model.get_input_embeddings().weight.requires_grad_(False)
        self._model.train()
        self._learned = [weight for weight in self._model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._learned, lr=options.rate, weight_decay=WEIGHT_DECAY)
        self._begun = time.monotonic()
        self.step = 0
        if (out / CHECKPOINT).is_file():
            kept = torch.load(out / CHECKPOINT, weights_only=True)
            self._model.load_state_dict(kept["model"])
            self._optimizer.load_state_dict(kept["optimizer"])
            self.step = kept["step"]
            self._begun -= kept["spent_s"]

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._begun

    def learn(self, batch: Sequence[tuple[TrainingExample, list[str]]], rate: float) -> tuple[float, float]:
        """Take one step. Returns the loss, and the share of examples whose positive scored best before it."""
        torch = self._torch
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        scores = self._scores([(example.query, text) for example, texts in batch for text in texts])
        scores = scores.view(len(batch), -1)
        loss = loss_of(torch, scores)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._learned, GRADIENT_NORM_MAX)
        self._optimizer.step()
        self.step += 1
        return float(loss.detach()), float((scores.argmax(1) == 0).float().mean())

    def _scores(self, pairs: list[tuple[str, str]]) -> Any:
        """Score each pair. Pairs of similar length run together: padding all to the longest would take 1.5 times as
        long."""
        torch = self._torch
        rows = self._tokenizer(
            pairs, truncation="only_second", max_length=self._options.tokens_max, return_token_type_ids=True
        )
        order = sorted(range(len(pairs)), key=lambda at: len(rows["input_ids"][at]))
        size = -(-len(order) // RUNS_A_STEP)
        found = []
        for at in range(0, len(order), size):
            some = {name: [values[row] for row in order[at : at + size]] for name, values in rows.items()}
            inputs = self._tokenizer.pad(some, return_tensors="pt")
            with torch.autocast("cpu", torch.bfloat16, enabled=self._options.bf16):
                found.append(self._model(**inputs).logits.float()[:, 0])
        return torch.cat(found)[torch.tensor(order).argsort()]

    def save(self) -> None:
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "spent_s": self.spent_s,
        }
        draft = self._out / f".{CHECKPOINT}"
        self._torch.save(state, draft)
        draft.replace(self._out / CHECKPOINT)

    def finish(self) -> None:
        self._model.save_pretrained(self._out)
        self._tokenizer.save_pretrained(self._out)
        (self._out / CHECKPOINT).unlink(missing_ok=True)


def loss_of(torch: Any, scores: Any) -> Any:
    """The loss of scores [examples, passages], the positive's first."""
    right = torch.zeros(len(scores), dtype=torch.long)
    labels = torch.zeros_like(scores)
    labels[:, 0] = 1
    chosen = torch.nn.functional.cross_entropy(scores, right)
    return chosen + torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)


def batches(
    examples: Sequence[TrainingExample], options: TrainingOptions, start: int = 0
) -> Iterator[list[tuple[TrainingExample, list[str]]]]:
    """Yield each step's examples with their passages, the positive first, from step `start` on. A seed gives the same.

    All examples of a batch have equally many passages: those with few negatives repeat them.
    """
    step = 0
    for epoch in range(options.epochs):
        chance = random.Random(f"{options.seed} {epoch}")
        order = chance.sample(range(len(examples)), len(examples))
        size = options.examples
        whole = [order[at : at + SORTED_BATCHES * size] for at in range(0, len(order), SORTED_BATCHES * size)]
        drawn: list[list[int]] = []
        for some in whole:
            some.sort(key=lambda at: len(examples[at].query) + len(examples[at].positive))
            drawn += [some[at : at + size] for at in range(0, len(some) - size + 1, size)]
        chance.shuffle(drawn)
        for members in drawn:
            batch = [(examples[at], sample_passages(examples[at], options.negatives, chance)) for at in members]
            if step >= start:
                yield batch
            step += 1


def sample_passages(example: TrainingExample, negatives: int, chance: random.Random) -> list[str]:
    wrong = example.negatives
    drawn = chance.sample(wrong, min(negatives, len(wrong)))
    drawn += chance.choices(wrong, k=negatives - len(drawn))
    return [example.positive, *drawn]
