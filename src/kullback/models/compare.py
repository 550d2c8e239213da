"""`compare_models`: runs a base and its candidates over a text in step and measures them, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kullback.errors import ModelError, invalid_type, invalid_value, printable
from kullback.io.windows import Windows
from kullback.models.checkpoint import Checkpoint, Part, fingerprint
from kullback.models.language_model import LanguageModel
from kullback.models.noise import NoisyModel
from kullback.models.open_model import Progress, open_side
from kullback.models.passages import LENGTH, Passages
from kullback.models.result import Candidate, ModelComparison, Passage
from kullback.models.side import DenseSide, in_step, side_of_file
from kullback.models.text import Score, Text, make_windows, take_texts
from kullback.models.vocabulary import SharedClasses, share_classes
from kullback.predictions.collect import Collector
from kullback.predictions.intervals import MeanEstimator, Quantity
from kullback.predictions.measure import Measured, measure
from kullback.predictions.result import Mean, WorstRow
from kullback.predictions.sources import Clusters
from kullback.streaming import Moments
from kullback.words import RepresentationName

__all__ = ["compare_models"]

CALL = "compare_models"
BLOCK_BYTES = 40 * 1024 * 1024
# Elements that one thread measures at a time: its temporaries fit the core's cache.
PART = (1 << 15) - 1
LOGITS = "logits", "logits"
FEWEST_DOCUMENTS = 10  # to be the clusters; of fewer, the windows are


def compare_models(
    base: object,
    candidates: object,
    texts: object,
    *,
    tokenizer: Any = None,
    representation: RepresentationName | None = None,
    context: int = 512,
    score: Score = "second-half",
    most_windows: int | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    hub: bool = False,
    noise_floor: bool = False,
    resume: str | os.PathLike[str] | None = None,
    worst: int = 10,
    bootstrap: int = 1000,
    generator: torch.Generator | None = None,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> ModelComparison:
    r"""Compare causal language models with a base over a text: how far their predictions are from the base's.

    .. math:: \frac1N \sum_{n=1}^N KL\bigl(P(\cdot \mid x_{<n}) \,\|\, Q(\cdot \mid x_{<n})\bigr)

    over the scored tokens of the text, and everything else that `compare_predictions` reports, perplexities among them.
    All models read the same tokens. Windows are cut and scored as ``llama-perplexity`` does by default, so that numbers
    can be compared: `context` tokens each, of which the second half is scored. Standard errors and intervals take the
    windows to be independent (the documents, where there are ten or more).

    Where two models have the same tokens in another order, or one has classes that stand for no token, classes are
    matched by the bytes of their tokens. What is not shared becomes one class, so that every divergence is a lower
    bound of that of the whole vocabularies; a note says so. Models whose tokenizers cut the text differently are
    refused.

    Arguments:
        base: P: a folder of a Hugging Face causal language model, a ``.gguf`` file, a module called with ``input_ids``
            that returns logits, or a source of `kullback.io.open_rows` with a row for each scored token.
        candidates: Q, likewise; one or a list of them.
        texts: a text, a `pathlib.Path` of a text file or of JSONL lines with ``"text"`` or ``"messages"``, a list of
            texts, or a list of conversations.
        tokenizer: that of the modules among the models.
        representation: what the numbers of the files among the sides are, as for `compare_predictions`.
        context: the number of tokens in a window, and the most that a conversation may have.
        score: ``"second-half"`` of each window, ``"all"`` tokens, or the replies of the ``"assistant"`` in
        conversations. most_windows: how many windows to read; all by default.
        dtype: of the weights of folders: ``"auto"`` as declared there, ``"float32"``, ``"bfloat16"``, ``"float16"``.
        device: where folders run, as ``"cuda"``.
        trust_remote_code: whether code in a folder may run.
        hub: whether names may stand for models on the Hugging Face hub.
        noise_floor: whether to compare the base also with itself plus noise of its dtype's rounding in every layer:
            what lies below this KL no measurement can tell.
        resume: a file that holds the finished windows: a run that was stopped goes on from it, and gives the same
            result as one that was not. It is removed at the end.
        worst, bootstrap, generator, block_bytes: as for `compare_predictions`.
        progress: called with the tokens scored and those in all.

    Returns:
        a `ModelComparison`; divergences in nats.

    Raises:
        ModelError: a model cannot be loaded or run, reads other tokens than the base, or gives NaN (window and token
            are named); the text is shorter than a window.
        FileError: a file cannot be read, or has another number of rows than tokens are scored.
        ArgumentTypeError, ArgumentValueError: an argument is of the wrong type, shape or range.
        OptionalDependencyError: transformers or llama-cpp-python is not installed.

    Example:
        >>> from kullback.models import compare_models
        >>> found = compare_models("llama-3-8b", ["q8.gguf", "q4.gguf"], "some long text")  # doctest: +SKIP
        >>> found.candidates[0].comparison.divergences["kl_pq"].mean  # doctest: +SKIP
        0.0021

    References:
        llama.cpp, tools/perplexity (Gerganov and others, 2023)
    """
    given = list(candidates) if isinstance(candidates, list | tuple) else [candidates]
    if not given:
        raise invalid_value(
            CALL,
            "candidates",
            wanted="at least one model",
            got="none",
            instead="candidates=['folder/of/model']",
        )
    text = take_texts(CALL, texts)
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "representation": representation,
        "dtype": dtype,
        "device": device,
        "trust_remote_code": trust_remote_code,
        "hub": hub,
    }
    with ExitStack() as stack:
        opened = [
            stack.enter_context(open_side(each, name, **options))
            for each, name in ((base, "base"), *((each, "candidate") for each in given))
        ]
        first = opened[0]
        reader = next((each for each in opened if isinstance(each, LanguageModel)), None)
        if reader is None:
            raise invalid_type(
                CALL,
                "base",
                wanted="a model among the sides",
                got="files only",
                instead="compare_predictions(p, q)",
            )
        windows, documents = make_windows(reader, text, context=context, score=score, most=most_windows)
        cut = (text, context, score, most_windows)
        sides = [_side(each, windows, reader, cut) for each in opened]
        if noise_floor:
            if not isinstance(first, LanguageModel):
                raise invalid_value(
                    CALL, "noise_floor", wanted="a model as base", got=str(base), instead="noise_floor=False"
                )
            noisy = NoisyModel(first)
            sides.append(DenseSide(noisy, noisy.info, windows))
        maps = [_shared(sides[0], side) for side in sides[1:]]
        clusters = _clusters(windows, documents)
        run = _Run(sides, maps, windows, clusters, worst=worst, bootstrap=bootstrap, generator=generator)
        if resume is None:
            run.all_windows(0, block_bytes, progress, None)
        else:
            identity = fingerprint(
                tokens=windows.tokens,
                scored=windows.scored.to(torch.uint8),
                models=[vars(side.info) for side in sides],
                options=[context, score, worst, dtype],
            )
            checkpoint = Checkpoint(Path(resume), identity)
            try:
                done = 0
                rows = windows.clusters.bincount().tolist()
                for record in checkpoint.windows(len(maps), rows):
                    run.take(done, record)
                    done += 1
                run.all_windows(done, block_bytes, progress, checkpoint)
            except BaseException:
                checkpoint.close(remove=False)
                raise
            checkpoint.close(remove=True)
        return run.result(context, score, _words(reader))


Cut = tuple[Text, int, Score, int | None]


def _side(opened: Any, windows: Windows, reader: LanguageModel, cut: Cut) -> DenseSide:
    """Return an open model with the windows in its own tokens, which must be the same tokens."""
    if not isinstance(opened, LanguageModel):
        return side_of_file(opened, windows)
    if opened is reader or (
        opened.vocabulary.fingerprint == reader.vocabulary.fingerprint and opened.bos == reader.bos
    ):
        return DenseSide(opened, opened.info, windows)
    text, context, score, most = cut
    own, _ = make_windows(opened, text, context=context, score=score, most=most)
    same = len(own.tokens) == len(windows.tokens)
    if same:
        pairs = zip(windows.tokens.tolist(), own.tokens.tolist(), strict=True)
        ours, theirs = reader.vocabulary, opened.vocabulary
        same = all(_token(ours, a) == _token(theirs, b) for a, b in pairs)
    if not same:
        raise ModelError(
            f"{printable(opened.name)}: wanted a tokenizer that cuts the text into the same tokens as "
            f"{printable(reader.name)}'s; got {_difference(reader, windows, opened, own)}; compare models of one "
            "tokenizer"
        )
    return DenseSide(opened, opened.info, Windows(own.tokens, windows.offsets, windows.scored))


def _token(vocabulary: Sequence[Any], index: int) -> Any:
    return vocabulary[index] if index < len(vocabulary) else None


def _difference(a: LanguageModel, ours: Windows, b: LanguageModel, theirs: Windows) -> str:
    for place, (x, y) in enumerate(zip(ours.tokens.tolist(), theirs.tokens.tolist(), strict=False)):
        if _token(a.vocabulary, x) != _token(b.vocabulary, y):
            return f"{b.vocabulary.text(y)!r} for {a.vocabulary.text(x)!r} at token {place}"
    return f"{len(theirs.tokens)} tokens for {len(ours.tokens)}"


def _shared(base: DenseSide, side: DenseSide) -> SharedClasses | None:
    models = base.model, side.model
    if isinstance(models[0], LanguageModel) and isinstance(models[1], LanguageModel):
        return share_classes(models[0].vocabulary, models[1].vocabulary, (base.classes, side.classes))
    if base.classes != side.classes:
        raise ModelError(
            f"{printable(side.info.name)}: wanted {base.classes} classes, as {printable(base.info.name)} has; got "
            f"{side.classes}; use predictions over one vocabulary"
        )
    return None


def _clusters(windows: Windows, documents: Tensor) -> Clusters:
    """Return the documents as clusters if there are enough of them, else the windows."""
    count = int(documents.max()) + 1
    if count < FEWEST_DOCUMENTS:
        return Clusters(windows.clusters, [f"window {number}" for number in range(len(windows))])
    present, numbers = documents.unique(return_inverse=True)
    return Clusters(numbers[windows.clusters], [f"document {number}" for number in present.tolist()])


def _words(reader: LanguageModel) -> list[str]:
    return [reader.vocabulary.text(index) for index in range(max(reader.classes, len(reader.vocabulary)))]


class _Pair:
    """One candidate against the base: its statistics so far."""

    def __init__(self, labels: Tensor, collector: Collector, passages: Passages) -> None:
        self.labels, self.collector, self.passages = labels, collector, passages
        self.kl: list[Tensor] = []

    def measured(self, start: int, p: Tensor, q: Tensor, span: tuple[int, int]) -> Part:
        """Measure one passage, the rows of a span of a block that begins at row `start`."""
        first, stop = span
        labels = self.labels[start + first : start + stop]
        step = max(1, PART // p.shape[-1])

        def parts() -> Iterator[Measured]:
            for low in range(first, stop, step):
                rows = slice(low, min(low + step, stop))
                yield measure(p[rows], q[rows], LOGITS, labels[low - first : rows.stop - first])

        tables: list[Tensor] = []
        worst: list[WorstRow] = []
        row = start + first
        for part in parts():
            tables.append(part.table)
            worst += self.collector.worst.candidates(row, part)
            row += len(part.table)
        table = torch.cat(tables)
        passages: list[tuple[int, Passage]] = []
        if self.passages.is_wanted(float(table[:, 0].mean())):
            passages.append((start + first, self.passages.read(start + first, parts(), labels)))
        return table, worst, passages

    def add(self, part: Part) -> None:
        """Add measured rows, in order."""
        table, worst, passages = part
        self.collector.add(table, worst)
        self.kl.append(table[:, 0].clone())
        for first, passage in passages:
            self.passages.add(first, passage)


class _Run:
    """The statistics of all candidates, window by window."""

    def __init__(
        self,
        sides: list[DenseSide],
        maps: list[SharedClasses | None],
        windows: Windows,
        clusters: Clusters,
        *,
        worst: int,
        bootstrap: int,
        generator: torch.Generator | None,
    ) -> None:
        self._sides, self._maps, self._windows, self._clusters = sides, maps, windows, clusters
        self._bootstrap = bootstrap
        seed = int(torch.randint(2**62, (), generator=generator or torch.Generator().manual_seed(0)))
        self._seed = seed
        self._pairs: list[_Pair] = []
        for shared in maps:
            labels = windows.labels if shared is None else shared.shared_numbers(windows.labels)
            draws = torch.Generator().manual_seed(seed)
            collector = Collector(
                windows.rows, labels, clusters, worst=worst, bootstrap=bootstrap, generator=draws
            )
            self._pairs.append(_Pair(labels, collector, Passages(windows)))
        self._rows = 0

    def take(self, window: int, record: list[Part]) -> None:
        """Add a window of an earlier run."""
        for pair, part in zip(self._pairs, record, strict=True):
            pair.add(part)
        self._rows += int(self._windows.window(window)[1].sum())

    def all_windows(
        self, first: int, block_bytes: int, progress: Progress | None, checkpoint: Checkpoint | None
    ) -> None:
        """Run the models over the windows from `first` on."""
        widest = max(side.classes for side in self._sides)
        rows = max(1, block_bytes // (4 * widest))
        rows = rows // LENGTH * LENGTH or rows  # whole passages
        last_of_window = set((self._windows.clusters.diff() != 0).nonzero().squeeze(-1).add(1).tolist())
        record: list[list[Part]] = [[] for _ in self._pairs]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for blocks in in_step(self._sides, self._maps, rows, first):
                count = len(blocks[0][0])
                ends = self._pairs[0].passages.ends(self._rows, self._rows + count)
                spans = list(zip([0, *ends[:-1]], ends, strict=True))
                for pair, (p, q), kept in zip(self._pairs, blocks, record, strict=True):
                    for part in pool.map(partial(pair.measured, self._rows, p, q), spans):
                        pair.add(part)
                        if checkpoint is not None:
                            kept.append(part)
                self._rows += count
                if progress is not None:
                    progress(self._rows, self._windows.rows)
                if checkpoint is not None and (
                    self._rows in last_of_window or self._rows == self._windows.rows
                ):
                    checkpoint.add([_joined(kept) for kept in record])
                    record = [[] for _ in self._pairs]
        if self._rows != self._windows.rows:
            raise ModelError(
                f"wanted predictions for {self._windows.rows} tokens; got {self._rows}; a model or file ended early"
            )

    def result(self, context: int, score: str, words: list[str]) -> ModelComparison:
        """Return the comparison of all windows."""
        base = self._sides[0]
        found: list[tuple[Candidate, Tensor]] = []
        floor: Candidate | None = None
        for side, shared, pair in zip(self._sides[1:], self._maps, self._pairs, strict=True):
            notes = [] if shared is None else [_note_on_classes(shared)]
            comparison = pair.collector.comparison(base, side, notes)
            candidate = Candidate(
                side.info,
                comparison,
                pair.passages.passages(),
                None if shared is None else len(shared.p),
            )
            if isinstance(side.model, NoisyModel):
                floor = candidate
            else:
                found.append((candidate, torch.cat(pair.kl)))
        found.sort(key=lambda each: each[0].comparison.divergences["kl_pq"].mean)
        differences = [self._difference(b[1] - a[1]) for a, b in pairwise(found)]
        return ModelComparison(
            base=base.info,
            candidates=[candidate for candidate, _ in found],
            differences=differences,
            noise_floor=floor,
            text=self._windows,
            context=context,
            score=score,
            tokens=words,
            whole_text=self._pairs[0].passages.whole_text,
            notes=[],
        )

    def _difference(self, values: Tensor) -> Mean:
        moments = Moments()
        moments.add(values)
        draws = torch.Generator().manual_seed(self._seed)
        estimator = MeanEstimator(1, self._bootstrap, draws, self._clusters.numbers)
        estimator.add(values[:, None])
        found = estimator.estimates([Quantity(0)])[0]
        return Mean(float(moments.mean), found.standard_error, found.interval, reason=found.reason)


def _joined(parts: list[Part]) -> Part:
    tables, worst, passages = zip(*parts, strict=True)
    return (
        torch.cat(tables),
        [row for each in worst for row in each],
        [each for held in passages for each in held],
    )


def _note_on_classes(shared: SharedClasses) -> str:
    others = f"{len(shared.others_p):,} classes of P and {len(shared.others_q):,} of Q"
    if shared.classes == len(shared.p):
        return "The classes of P and Q are in another order; they are matched by the bytes of their tokens."
    return (
        f"P and Q share {len(shared.p):,} classes, matched by the bytes of their tokens. {others} are counted as one "
        "class, so that every divergence is a lower bound of that of the whole vocabularies."
    )
