"""`compare_models`, which runs a base and candidates over a text in step and measures them in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, ValuesView
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.common.constraints import FLAG, Arguments, OfType
from kullback.common.extra_arguments import by_name
from kullback.common.row_statistics import FURTHER
from kullback.common.words import is_card
from kullback.errors import ModelError, Name, invalid_type, invalid_value, printable, safe_repr
from kullback.io import Reference
from kullback.io.windows import Windows
from kullback.models.card import notes_of_card
from kullback.models.huggingface_model import HuggingFaceModel, NoisyModel
from kullback.models.language_model import LanguageModel
from kullback.models.match import Matched, match_sides, require_classes, shared_classes
from kullback.models.model_results import Candidate, ModelComparison, Recorded
from kullback.models.open_model import LOADING, Loading, Opened, is_reference, opened_in
from kullback.models.pairing import (
    LENGTH,
    DensePairing,
    Pairing,
    PairingSettings,
    differences,
    differences_by_group,
)
from kullback.models.partial import ListedPairing, ReferencePairing
from kullback.models.recording import (
    copied,
    metadata_of,
    metadata_of_windows,
    record_reference,
    recorded_by,
    recorded_in,
    require_recordable,
    weights_hash,
)
from kullback.models.side import DenseSide, ModelSide, ReferenceSide
from kullback.models.text import CUT, Cut, Text, take_texts
from kullback.models.until_sure import check_goal, in_random_order, outcome_of, question_of, with_bounds
from kullback.predictions.reading import Reading
from kullback.predictions.run import RUN, Run
from kullback.predictions.sources import Clusters
from kullback.predictions.until_sure import Question

CALL = "compare_models"
FLOOR_SHARE = 32  # by default, a noise floor reads one window in this many, which takes 3 % of the time
FEWEST_DOCUMENTS = 10  # with fewer documents, windows are the clusters
# The classes to record for each token of the base with `one_at_a_time`. These numbers are larger than the defaults,
# because the file is temporary.
RECORDED = {"top": 256, "tail_draws": 64}

_ARGUMENTS = Arguments(
    CALL,
    noise_floor=OfType((bool,), wanted="True, False or None", example=True, optional=True),
    one_at_a_time=FLAG,
)


@by_name()
def compare_models(
    base: object,
    candidates: object,
    texts: object = None,
    *,
    cut: Cut = CUT,
    loading: Loading = LOADING,
    run: Run = RUN,
    noise_floor: bool | None = None,
    one_at_a_time: bool = False,
    record: str | os.PathLike[str] | None = None,
) -> ModelComparison:
    r"""Compare causal language models with a base over a text, by the divergences between their predictions and the
    base's.

    .. math:: \frac1N \sum_{n=1}^N KL\bigl(P(\cdot \mid x_{<n}) \,\|\, Q(\cdot \mid x_{<n})\bigr)

    The mean is over the scored tokens of the text. The result also has everything that `compare_predictions` reports,
    including perplexities. All models read the same tokens. By default, windows have 512 tokens and their second halves
    are scored, as in ``llama-perplexity``, so you can compare the numbers. Standard errors and intervals treat windows
    as the independent units, or documents if there are ten or more. The order of the units is examined. If the order
    shows dependence, blocks of windows are the units, and a note gives the effective number of windows.

    Classes are matched by the bytes of the tokens if two models have the same tokens in different orders, or if one
    model has classes without a token. All classes that are not shared become one class. Every divergence is then a
    lower bound of the divergence over the whole vocabularies, as a note states. Models whose tokenizers cut the text
    differently are refused.

    One side may be a reference file of `record_reference`. If the other side gives all logits, every mean is unbiased,
    and the interval of the mean includes the sampling noise of the file. `Candidate.drawn` and `Candidate.certain` give
    estimates and bounds for exactly these tokens. If the candidate is the reference, KL(base || candidate) weights the
    draws by ratios of probabilities. Its upper limit is infinite unless the ratios are light-tailed in every row. A
    server, stored top classes, or two references give only bounds. The reported divergences are then lower bounds, with
    all other classes as one class.

    Arguments:
        base: P: a folder of a Hugging Face causal language model, a ``.gguf`` file, a reference file (``.klref``), the
            folder of a card, or a module. The module takes ``input_ids`` and returns logits. P may also be a
            source from `kullback.io.open_rows` or `kullback.io.open_top_k`, or a `kullback.io.RowStream` such as
            `HiddenStates`, with one row for each scored token.
        candidates: Q, in the same forms as the base, or the address of a server (``http://...``) with vLLM's, SGLang's
            or OpenAI's completions API. Pass one candidate, a list, or a mapping from names to candidates. If two
            candidates in a list have the same name, the second is called ``"name (2)"``, and so on.
        texts: a text, a `pathlib.Path` of a text file or JSONL file, or a list of texts, records or conversations. A
            record, such as a line of a JSONL file, has ``"text"``, or ``"messages"`` and ``"tools"``, or ``"prompt"``
            and ``"completion"``. None if a side is a reference file, which contains the tokens.
        cut: how the text is cut into windows, which tokens are scored, and their groups.
        loading: settings for opening models and files, such as a module's tokenizer, the dtype and the device.
        run: settings of the statistics, the intervals, the memory of a block, and the file that keeps finished windows.
        noise_floor: whether to compare the base also with a copy of the base that has rounding noise of the model's
            dtype in every layer. Values of KL below the resulting KL are within rounding noise. True reads the whole
            text, which takes an additional run of the base. None reads the first 32nd of the windows, if the base is a
            Hugging Face model with recognized layers.
        one_at_a_time: whether to keep only one model in memory. If so, the base's predictions are first recorded as a
            reference file in a temporary folder. Each candidate is then compared with this file. For a candidate that
            is a reference itself, this gives only bounds.
        record: a reference file to write of the base while it is read, for `ModelComparison.to_card`; None for no file.
            A base that is a reference is copied.

    Returns:
        a `ModelComparison`; divergences in nats.

    Raises:
        ModelError: a model cannot be loaded or run, reads other tokens than the base, or gives NaN. The message names
            the window and the token of a NaN. The error is also raised if the text is shorter than a window.
        FileError: a file cannot be read, or does not have one row for each scored token.
        ArgumentTypeError, ArgumentValueError: an argument is of the wrong type, shape or range.
        OptionalDependencyError: transformers or llama-cpp-python is not installed.

    Example:
        >>> from kullback.models import compare_models
        >>> comparison = compare_models("llama-3-8b", ["q8.gguf", "q4.gguf"], "some long text")  # doctest: +SKIP
        >>> comparison.candidates[0].comparison.divergences["kl_pq"].mean  # doctest: +SKIP
        0.0021

    References:
        llama.cpp, tools/perplexity (Gerganov and others, 2023)
    """
    _ARGUMENTS.check(noise_floor=noise_floor, one_at_a_time=one_at_a_time)
    named = _named(candidates)
    several = named.values() if named is not None else candidates
    every_candidate = list(several) if isinstance(several, list | tuple | ValuesView) else [several]
    if not every_candidate:
        raise invalid_value(
            CALL,
            "candidates",
            wanted="at least one model",
            got="none",
            instead="candidates=['folder/of/model']",
        )
    if one_at_a_time and run.resume is not None:
        raise invalid_value(
            "Run",
            "resume",
            wanted=("none with ", Name("one_at_a_time")),
            got=os.fspath(run.resume),
            instead={"one_at_a_time": False},
        )
    if one_at_a_time and noise_floor and not is_reference(base):
        raise invalid_value(
            CALL,
            "noise_floor, one_at_a_time",
            wanted="one of the two",
            got=(
                "both: ",
                Name("one_at_a_time"),
                " compares with a file of the base, which takes no rounding noise",
            ),
            instead={"noise_floor": False},
        )
    check_goal(run, len(every_candidate), one_at_a_time=one_at_a_time, noise_floor=noise_floor)
    recorded = None
    if record is not None:
        further = {"noise_floor": noise_floor, "one_at_a_time": one_at_a_time}
        recorded = recorded_by(record, [base, *every_candidate], texts, cut, loading, run, further)
    card = base if isinstance(base, str | os.PathLike) and is_card(base) else None
    is_identified = card is not None or record is not None
    text = None if texts is None else take_texts(CALL, texts)
    seed = int(
        torch.randint(2**62, (), generator=run.generator or torch.Generator().manual_seed(0), device="cpu")
    )
    settings = _Settings(cut, loading, run, seed, texts, recorded and recorded.path)
    with ExitStack() as stack:
        name = None
        if one_at_a_time and not is_reference(base):
            name = str(base) if isinstance(base, str | os.PathLike) else type(base).__name__
            base = _recorded(stack, base, texts, settings)
        opened = opened_in(stack, base, "base", settings.loading)
        if recorded is not None:
            require_recordable(opened)
            if isinstance(opened, Reference):
                stack.enter_context(copied(opened, recorded.path))
        # With `one_at_a_time`, each group is a single candidate. The text is the same for all groups.
        groups = [[each] for each in every_candidate] if one_at_a_time else [every_candidate]
        parts = [
            _compare_group(
                opened,
                group,
                # If the only candidate is a reference, no side can read the text, and the stored tokens are compared.
                None if one_at_a_time and is_reference(group[0]) else text,
                settings,
                noise_floor=False if place else noise_floor,
            )
            for place, group in enumerate(groups)
        ]
    # A model on the hub is in the cache now.
    hashes = [weights_hash(each) if is_identified else None for each in every_candidate]
    result = _joined(parts, name, None if named is None else list(named), hashes, recorded)
    notes = [] if card is None else notes_of_card(Path(card), result.candidates)
    return replace(result, notes=[*result.notes, *notes], repeats=notes)


@dataclass(frozen=True)
class _Settings:
    """Settings that all candidates share."""

    cut: Cut
    loading: Loading
    run: Run
    seed: int
    texts: object
    record: Path | None

    def of_pairings(self, matched: Matched) -> PairingSettings:
        """Return the settings of each pair of a base and a candidate."""
        independent = self.run.independent or self.run.goal is not None
        clusters = _clusters(matched.windows, matched.documents, independent=independent)
        # An interval for a fixed number of windows is wrong where the data decide the number.
        run = self.run if self.run.goal is None else replace(self.run, bootstrap=0)
        return PairingSettings(matched.windows, clusters, run, self.seed, matched.groups)


class _Group(NamedTuple):
    """The results of candidates that were run together."""

    matched: Matched
    settings: PairingSettings
    results: list[tuple[Candidate, Tensor]]
    floor: Candidate | None
    whole_text: bool
    question: Question | None


def _compare_group(
    opened: Opened, group: list[Any], text: Text | None, settings: _Settings, *, noise_floor: bool | None
) -> _Group:
    with ExitStack() as stack:
        others = [opened_in(stack, each, "candidate", settings.loading) for each in group]
        goal, cut = settings.run.goal, settings.cut
        # With a goal, the number of windows limits how much is read, not the text that the result is about.
        matched = match_sides(opened, others, text, cut if goal is None else replace(cut, most_windows=None))
        of_pairings, question = settings.of_pairings(matched), None
        if goal is not None:
            matched = in_random_order(matched, of_pairings.clusters, settings.seed)
            of_pairings = settings.of_pairings(matched)
            units = of_pairings.windows, of_pairings.clusters
            question = question_of(settings.run, *units, len(others), cut.most_windows)
        base, *sides = matched.sides
        if settings.record is not None and isinstance(base, DenseSide):
            known = metadata_of_windows(matched.context, matched.score, matched.documents)
            metadata = known | metadata_of(base.model, settings.texts, settings.loading, others)
            base = recorded_in(stack, base, settings.record, metadata)
        if noise_floor:
            sides.append(_noisy(opened, matched.windows))
        pairings = [_pairing(base, side, of_pairings) for side in sides]
        if question is not None:
            for place, pairing in enumerate(pairings):
                pairing.watch = partial(question.add, place)
        _read(stack, base, pairings, of_pairings, settings, question)
        results = [pairing.result() for pairing in pairings]
        floor = results.pop()[0] if noise_floor else None
        if noise_floor is None:
            floor = _floor_of_few(opened, matched, settings)
        return _Group(matched, of_pairings, results, floor, pairings[0].passages.whole_text, question)


def _named(candidates: object) -> dict[str, object] | None:
    """Return a mapping from names to candidates; None if `candidates` is not a mapping."""
    if not isinstance(candidates, Mapping):
        return None
    named = cast("Mapping[Any, object]", candidates)
    for name in named:
        if not isinstance(name, str) or not name.strip():
            raise invalid_type(
                CALL,
                "candidates",
                wanted="names that are strings, and not empty",
                got=safe_repr(name),
                instead="candidates={'int8': model}",
            )
    return dict(named)


def _joined(
    parts: list[_Group],
    name: str | None,
    names: list[str] | None,
    hashes: list[str | None],
    recorded: Recorded | None,
) -> ModelComparison:
    """Return the result of all groups.

    Arguments:
        parts: the results of the groups.
        name: the original name of a base that was recorded in a temporary file; None for other bases.
        names: the names that the user gave to the candidates; None if the user gave no names.
        hashes: the hash of each candidate's weights, in the order of the call.
        recorded: the arguments, with the candidates in the order of the call; None if no file was written.
    """
    matched, settings, _, floor, whole_text, question = parts[0]
    base = matched.sides[0].info
    base = base if name is None else replace(base, name=name)
    results = [each for part in parts for each in part.results]
    if names is None:
        names = distinct([base.name, *(candidate.model.name for candidate, _ in results)])[1:]
    elif base.name in names:
        base = replace(base, name=f"{base.name} (P)")
    results = [
        (replace(_called(candidate, base.name, each), weights_sha256=weights), errors)
        for each, weights, (candidate, errors) in zip(names, hashes, results, strict=True)
    ]
    order = sorted(
        range(len(results)), key=lambda place: results[place][0].comparison.divergences["kl_pq"].mean
    )
    results = [results[place] for place in order]
    if recorded is not None:
        sides, heads = (
            (of[0], *(of[place + 1] for place in order)) for of in (recorded.sides, recorded.heads)
        )
        recorded = replace(recorded, sides=sides, heads=heads)
    compared, outcome, windows = [candidate for candidate, _ in results], None, matched.windows
    distances, by_group = differences(results, settings), differences_by_group(results, settings)
    if question is not None:
        outcome = outcome_of(question, order, [each.model.name for each in compared], settings.clusters)
        compared = [with_bounds(each, question, place) for each, place in zip(compared, order, strict=True)]
        ends = [question.difference(*pair) for pair in pairwise(order)]
        distances = [replace(each, interval=pair) for each, pair in zip(distances, ends, strict=True)]
        rows = max(len(errors) for _, errors in results)
        windows = windows.in_order(torch.arange(int(windows.clusters[rows - 1]) + 1, device="cpu"))
    return ModelComparison(
        base=base,
        candidates=compared,
        differences=distances,
        noise_floor=floor,
        text=windows,
        context=matched.context,
        score=matched.score,
        tokens=next((part.matched.words for part in parts if part.matched.words), None),
        whole_text=whole_text,
        notes=matched.notes,
        until_sure=outcome,
        differences_by_group=by_group,
        recorded=recorded,
    )


def distinct(names: Sequence[str]) -> list[str]:
    """Return names that are all different: repeated names are numbered from the second on.

    Example:
        >>> distinct(["base", "base", "int8", "base", "base (2)"])
        ['base', 'base (2)', 'int8', 'base (3)', 'base (2) (2)']
    """
    all_names: list[str] = []
    for name in names:
        others = (f"{name} ({number})" for number in count(2))
        all_names.append(next(each for each in chain([name], others) if each not in all_names))
    return all_names


def _called(candidate: Candidate, base: str, name: str) -> Candidate:
    """Return a candidate with the names that the report uses for it and for the base."""
    groups = {
        key: replace(each, p_name=base, q_name=name) for key, each in candidate.comparison.groups.items()
    }
    return replace(
        candidate,
        model=replace(candidate.model, name=name),
        comparison=replace(candidate.comparison, p_name=base, q_name=name, groups=groups),
    )


def _recorded(stack: ExitStack, base: object, texts: object, settings: _Settings) -> Path:
    """Record the base in a temporary folder, and return the path of the file."""
    folder = stack.enter_context(TemporaryDirectory(prefix="kullback-"))
    path = Path(folder) / "base.klref"
    record_reference(
        base,
        texts,
        path,
        **RECORDED,
        cut=settings.cut,
        loading=settings.loading,
        progress=settings.run.progress,
    )
    return path


def _noisy(opened: Opened, windows: Windows) -> DenseSide:
    if not isinstance(opened, LanguageModel):
        raise invalid_value(
            CALL,
            "noise_floor",
            wanted="a model as base",
            got="a file or server",
            instead={"noise_floor": False},
        )
    noisy = NoisyModel(opened)
    return DenseSide(noisy.info, windows, noisy)


def _floor_of_few(opened: Opened, matched: Matched, settings: _Settings) -> Candidate | None:
    """Return the noise floor on the first windows; None if it cannot be measured."""
    if not isinstance(opened, HuggingFaceModel):
        return None
    number = -(-len(matched.windows) // FLOOR_SHARE)
    stop = int(matched.windows.offsets[number])
    tokens, offsets, scored = matched.windows.tokens, matched.windows.offsets, matched.windows.scored
    few = Windows(tokens[:stop], offsets[: number + 1], scored[:stop])
    run = replace(settings.run, llama_cpp=False, progress=None, resume=None, until_sure=None, runs=1)
    quiet = replace(settings, run=run)
    first = matched._replace(windows=few, documents=matched.documents[:number], groups=None)
    of_pairings = quiet.of_pairings(first)
    try:
        base = DenseSide(opened.info, few, opened)
        pairing = _pairing(base, _noisy(opened, few), of_pairings)
        with ExitStack() as stack:
            _read(stack, base, [pairing], of_pairings, quiet, None)
    except ModelError:  # the model's layers are of another kind
        return None
    return pairing.result()[0]


def _pairing(base: ModelSide, side: ModelSide, settings: PairingSettings) -> Pairing:
    if isinstance(base, DenseSide) and isinstance(side, DenseSide):
        return DensePairing(base, side, settings, shared_classes(base, side))
    require_classes(base, side)
    if settings.run.llama_cpp:
        raise invalid_value(
            "Run",
            "llama_cpp",
            wanted="sides that give all logits, for the lines of llama.cpp",
            got="a side that gives some",
            instead={"llama_cpp": False},
        )
    for one, other in ((base, side), (side, base)):
        # Draws allow estimates. A reference of top classes alone has no draws.
        has_draws = isinstance(one, ReferenceSide) and one.reference.tail_draws > 0
        if has_draws and isinstance(other, DenseSide):
            return ReferencePairing(base, side, settings)
    return ListedPairing(base, side, settings)


def _read(
    stack: ExitStack,
    base: ModelSide,
    pairings: Sequence[Pairing],
    of_pairings: PairingSettings,
    settings: _Settings,
    question: Question | None,
) -> None:
    """Read all sides in step, and measure each pairing, until the question is answered."""
    windows, run, cut = of_pairings.windows, settings.run, settings.cut
    sides = [base, *(pairing.candidate for pairing in pairings)]

    def ended(place: int, _counts: object) -> ModelError:
        return ModelError.at(
            printable(sides[place].name),
            wanted="predictions for as many tokens as the other sides have",
            got="fewer",
            instead="use files and models of the same text, context and score",
        )

    rows = max(1, run.block_bytes // (4 * max(1, *(side.classes for side in sides))))
    reading = Reading(
        sides,
        pairings,
        run,
        differ=ended,
        rows_in_block=rows // LENGTH * LENGTH or rows,  # whole passages
        rows=windows.rows,
        stopping=question,
        begins={windows.rows, *(windows.clusters.diff() != 0).nonzero().squeeze(-1).add(1).tolist()},
    )

    def identity() -> dict[str, object]:
        return {
            "tokens": windows.tokens,
            "scored": windows.scored.to(torch.uint8),
            "sides": [side.identity() for side in sides],
            "options": [*cut.chosen, run.worst, settings.loading.representation, list(FURTHER)],
            **({} if question is None else {"goal": vars(question.goal)}),
        }

    rows = reading.all_rows(stack, identity)
    if question is None and rows != windows.rows:
        wanted, instead = f"predictions for {windows.rows} tokens", "a model or file ended early"
        raise ModelError.at("", wanted=wanted, got=str(rows), instead=instead)


def _clusters(windows: Windows, documents: Tensor, *, independent: bool) -> Clusters:
    """Return the documents as clusters if there are enough documents, else the windows."""
    count = int(documents.max()) + 1
    if count < FEWEST_DOCUMENTS:
        names = [f"window {number}" for number in range(len(windows))]
        return Clusters(windows.clusters, names, "windows", not independent)
    present, numbers = documents.unique(return_inverse=True)
    names = [f"document {number}" for number in present.tolist()]
    return Clusters(numbers[windows.clusters], names, "documents", not independent)
