"""Language models behind an inference server, which returns the top log-probabilities at each token of a text."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from kullback.common.plain_values import JsonObject
from kullback.errors import BY_EVENT, FileError, ModelError, printable
from kullback.io import PartialRows, open_top_k
from kullback.io.windows import Windows
from kullback.models.http import Answer, Endpoint, UnreachableError
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.vocabulary import Vocabulary
from kullback.partial_rows import log_tail_mass

TOP = 20  # the most that vLLM gives without --max-logprobs
CONCURRENCY = 4
PIECE = 1 << 16  # characters of a text whose tokens are compared at a time
BYTES_OF_ENTRY = 256  # the largest size of one token in an answer, in bytes
FIELDS = "tokens", "token_logprobs", "top_logprobs"
TRIALS = 8  # about the most beginnings of a text that test a server's alignment of values with tokens
SMALLEST_REST = 1e-6  # the smallest remaining probability that float32 can show
ROUNDING = 0.5  # the largest difference, in nats, between two low-precision log-probabilities of one improbable token
WHO_CAN = "vLLM, SGLang and llama-cpp-python's server (started with --logits_all true) can"


class ServerModel(LanguageModel):
    r"""A language model behind an inference server, which gives the most probable tokens at each position.

    The server is asked for the log-probabilities of the prompt. vLLM returns them from ``/v1/completions`` with
    ``prompt_logprobs``, and SGLang from ``/generate`` with ``top_logprobs_num``. Other servers, such as
    llama-cpp-python, need OpenAI's completions with ``echo`` and ``logprobs``. vLLM and SGLang get windows as token
    ids. Other servers get windows as text, which they must cut into the same tokens. The answers of other servers name
    tokens by text. If several tokens share a text, only more probable tokens are known. The programs llama-server and
    OpenAI's own API give log-probabilities of generated tokens only, and are refused.

    Arguments:
        top: the number of tokens to ask for at each position, in addition to the true token.
        api_key_env: the name of the environment variable with the server's key.
        concurrency: the number of requests at a time.

    Attributes:
        speaks: the protocol of the server: ``"vllm"``, ``"sglang"`` or ``"openai"``.
    """

    def __init__(
        self,
        address: str,
        *,
        top: int = TOP,
        api_key_env: str | None = None,
        concurrency: int = CONCURRENCY,
        first_wait: float = 0.5,
    ) -> None:
        self._server = Endpoint(address, api_key_env=api_key_env, first_wait=first_wait)
        self._top, self._concurrency = top, concurrency
        self._is_aligned = False
        try:
            self.speaks, model = _recognize(self._server)
            self._named = {"model": model} if model else {}
            # Servers report neither; both may be set to those of the model that the server is compared with.
            self.vocabulary = Vocabulary([])
            self.info = ModelInfo(self._server.address, "server")
            self.bos = self._first_token()
        except BaseException:
            self._server.close()
            raise

    def encode(self, text: str) -> list[int]:
        return self._tokenize(text, special=False)

    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[Tensor]:
        raise self.error(
            wanted="a model that gives all logits",
            got=f"a server, which gives the top {self._top}",
            instead="call top_k",
        )

    def require_same_tokens(self, text: str, encode: Callable[[str], list[int]]) -> None:
        """Refuse a server that cuts a text into other token ids than `encode` of another model."""
        if self.speaks == "openai":
            return  # tokens are matched by their text, window by window
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            ours, theirs = encode(piece), self._tokenize(piece, special=False)
            if ours != theirs:
                shorter = min(len(ours), len(theirs))
                place = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
                got = f"{theirs[place]} for {ours[place]}" if place < shorter else "an end"
                raise self.error(
                    wanted="a server whose tokenizer gives the same token ids",
                    got=f"{got} at token {place} of the text from character {start} on",
                    instead="compare models of one tokenizer",
                )

    def top_k(self, windows: Windows, first: int = 0) -> Iterator[PartialRows]:
        """Iterate over the log-probabilities of windows `first` and later, in one block for each window.

        `PartialRows.positions` has the places of the scored tokens in the window.
        """
        numbers = iter(range(first, len(windows)))
        done = first
        self._server.resume()
        with ThreadPoolExecutor(self._concurrency, "kullback-server") as pool:
            waiting: deque[Future[PartialRows]] = deque(
                pool.submit(self._ask, windows, number) for number in islice(numbers, self._concurrency + 1)
            )
            try:
                while waiting:
                    block = waiting.popleft().result()
                    waiting.extend(pool.submit(self._ask, windows, number) for number in islice(numbers, 1))
                    done += 1
                    yield block
            except UnreachableError as error:
                raise self.error(
                    wanted="an answer for every window",
                    got=f"the server stopped answering after {done} of {len(windows)} windows ({error.got})",
                    instead="start it again; a command with --resume continues from there",
                    wording=BY_EVENT,
                ) from error
            finally:
                for each in waiting:
                    each.cancel()
                if waiting:
                    self._server.stop()

    def close(self) -> None:
        self._server.close()

    def _ask(self, windows: Windows, number: int) -> PartialRows:
        tokens, scored = windows.window(number)
        ids = tokens.tolist()
        ask = {"vllm": self._ask_vllm, "sglang": self._ask_sglang, "openai": self._ask_openai}[self.speaks]
        most = 1_000_000 + BYTES_OF_ENTRY * (self._top + 2) * len(ids)
        response = ask(ids, scored, most)
        try:
            classes = self.classes or None
            with open_top_k(response, self.speaks, classes=classes, name=self.name) as source:
                block = next(source.blocks(rows=len(ids) + 1), None)
        except FileError as error:
            said = printable(error if error.explanation is None else error.explanation.problem, 400)
            raise self.error(
                wanted="an undamaged answer",
                got=f"the answer for window {number} is damaged: {said}",
                instead="see the log of the server",
                wording="{got}",
            ) from error
        rows = self._scored(block, tokens, scored, number)
        return _only_ranked(rows, response["ranked_above"]) if self.speaks == "openai" else rows

    def _ask_vllm(self, ids: list[int], scored: Tensor, most: int) -> Any:
        wanted = scored.tolist()
        body = {"prompt": ids, "prompt_logprobs": self._top, "max_tokens": 1, "temperature": 0}
        response = self._good(self._server.post("/v1/completions", body | self._named, most))
        for choice in _choices(response):
            if choice.get("prompt_token_ids") is None:
                choice["prompt_token_ids"] = ids
            rows = choice.get("prompt_logprobs")
            if isinstance(rows, list):  # vLLM gives all positions, but only scored positions are read
                choice["prompt_logprobs"] = [
                    row if any(wanted[i : i + 1]) else None for i, row in enumerate(rows)
                ]
        return response

    def _ask_sglang(self, ids: list[int], scored: Tensor, most: int) -> Any:
        body = {
            "input_ids": ids,
            "return_logprob": True,
            "logprob_start_len": max(0, int(scored.nonzero()[0]) - 1),
            "top_logprobs_num": self._top,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        }
        return self._good(self._server.post("/generate", body, most))

    def _ask_openai(self, ids: list[int], scored: Tensor, most: int) -> Any:
        del scored
        word = self.vocabulary.get(ids[0])
        start = int(word is not None and word.special)  # the server adds this token to every text
        completion = self._completion(self._text_of(ids[start:]), most, echo=True)
        texts, values, listed = completion
        if len(texts) >= len(ids) and self._words_differ(ids, texts) is None:
            start = 0  # the server lists the first token too
        differs = self._words_differ(ids[start:], texts)
        if differs is not None:
            place, wanted = differs
            got = repr(texts[place]) if place < len(texts) else "an end"
            raise self.error(
                wanted=f"{wanted!r} at token {start + place} of a window that was sent as text",
                got=got,
                instead="use a server that takes token ids (vLLM, SGLang)",
            )
        self._require_alignment(ids, start, completion)
        words = self._unique_words
        rows: list[JsonObject | None] = [None] * start
        ranked_above = [0.0] * start
        for token, text, value, row in zip(ids[start:], texts, values, listed, strict=False):
            if not isinstance(row, dict) or not row or not isinstance(value, (int, float)):
                rows.append(None)
                ranked_above.append(0.0)
                continue
            others = {word: each for word, each in row.items() if word != text}
            known = {f"token_id:{words[word]}": each for word, each in others.items() if word in words}
            rows.append(known | {f"token_id:{token}": value})
            ranked_above.append(_largest_untold(others, text, value, words, self._top))
        content = {
            "tokens": [f"token_id:{token}" for token in ids],
            "token_logprobs": [None] * start + values[: len(ids) - start],
            "top_logprobs": rows,
        }
        return {"choices": [{"logprobs": content}], "ranked_above": ranked_above}

    def _completion(self, text: str, most: int, *, echo: bool) -> tuple[list[Any], list[Any], list[Any]]:
        """Complete a text by one token, and return the tokens, their log-probabilities and the lists of top tokens."""
        body = {"prompt": text, "max_tokens": 1, "temperature": 0, "echo": echo, "logprobs": self._top}
        response = self._good(self._server.post("/v1/completions", body | self._named, most))
        choices = _choices(response)
        log_probs = choices[0].get("logprobs") if len(choices) == 1 else None
        parts = [log_probs.get(name) for name in FIELDS] if isinstance(log_probs, dict) else []
        lists = [part for part in parts if isinstance(part, list)]
        if len(lists) < len(FIELDS) or len({len(part) for part in lists}) > 1:
            raise self.error(
                wanted="a server that gives log-probabilities of a prompt",
                got="none of them for a completion with echo",
                instead=WHO_CAN,
            )
        texts, values, listed = lists
        return texts, values, listed

    def _require_alignment(
        self, ids: list[int], start: int, completion: tuple[list[Any], list[Any], list[Any]]
    ) -> None:
        """Check once that the log-probabilities at a token are conditional on the tokens before that token.

        For models without BOS, llama-cpp-python instead gives the log-probabilities of the next token. So this method
        generates a token after a beginning of the text, and compares the distribution of this generated token with the
        log-probabilities.
        """
        if self._is_aligned:
            return
        listed = completion[2]
        places = [place for place in range(len(ids) - start) if place and listed[place]]
        for place in places[:: max(1, len(places) // TRIALS)]:
            try:
                text = self._text_of(ids[start : start + place])
            except ModelError:
                continue
            rows = self._completion(text, BYTES_OF_ENTRY * (self._top + 4_000), echo=False)[2]
            if rows and _agree(rows[0], listed[place]):
                self._is_aligned = True
                return
        raise self.error(
            wanted="log-probabilities of each token of a prompt given those before it",
            got="others, as llama-cpp-python gives for models without BOS",
            instead="serve the model with vLLM or SGLang, or compare the file",
        )

    def _words_differ(self, ids: list[int], texts: list[Any]) -> tuple[int, str] | None:
        """Return the first place where the server's token differs from these ids, and the expected text, if any."""
        for place, token in enumerate(ids):
            wanted = self._words_of(token)
            if place >= len(texts) or texts[place] not in wanted:
                return place, min(wanted)
        return None

    def _words_of(self, token: int) -> set[str]:
        """Return the texts that servers may write for a token, without or with marks for incomplete characters."""
        word = self.vocabulary.get(token)
        if word is None:
            return {""}
        words = {word.content.decode("utf-8", how) for how in ("ignore", "replace")}
        return words | {""} if word.special else words

    @cached_property
    def _unique_words(self) -> dict[str, int]:
        """A mapping from each text that only one token has to this token."""
        words = [self._words_of(token) for token in range(len(self.vocabulary))]
        count = Counter(word for each in words for word in each)
        return {word: token for token, each in enumerate(words) for word in each if count[word] == 1}

    def _text_of(self, ids: list[int]) -> str:
        tokens = [self.vocabulary.get(token) for token in ids]
        if not tokens or any(token is None or token.special for token in tokens):
            raise self._takes_text(
                "a window holds a token that no text contains, or the vocabulary is not known"
            )
        try:
            return b"".join(token.content for token in tokens if token is not None).decode()
        except UnicodeDecodeError:
            problem, more = "a window begins or ends within a character", ", or another context (--context)"
            raise self._takes_text(problem, more) from None

    def _takes_text(self, problem: str, more: str = "") -> ModelError:
        return self.error(
            wanted="a server that takes token ids",
            got=f"this server takes text, and {problem}",
            instead=f"use a server that takes token ids (vLLM, SGLang){more}",
            wording=BY_EVENT,
        )

    def _good(self, answer: Answer) -> Any:
        if answer.is_good and isinstance(answer.body, dict):
            return answer.body
        said = self._server.message(answer)
        lower = said.lower()
        instead = (
            f"ask for fewer tokens (--top 20), or start the server with --max-logprobs {self._top}"
            if "logprobs" in lower
            else "take a smaller context (--context), or start the server with a longer one"
            if "length" in lower or "context" in lower
            else "see the server's log"
        )
        raise self.error(wanted="log-probabilities of a prompt", got=said, instead=instead)

    def _scored(self, block: PartialRows | None, tokens: Tensor, scored: Tensor, number: int) -> PartialRows:
        """Return the rows of the scored tokens; refuse rows of tokens that were not sent."""
        places = scored.nonzero().squeeze(-1)
        row_of = torch.full((len(tokens),), -1, device="cpu")
        if block is not None:
            inside = block.positions < len(tokens)  # the generated tokens come after the window
            row_of[block.positions[inside]] = inside.nonzero().squeeze(-1)
        rows = row_of[places]
        if block is None or bool((rows < 0).any()):
            place = int(places[rows < 0][0])
            raise self.error(
                wanted="log-probabilities of all scored tokens",
                got=f"none for token {place} of window {number}",
                instead=f"{('score the second half (--score second-half)' if place == 1 else WHO_CAN)}",
            )
        kept = block[rows]
        wrong = kept.labels != tokens[places]
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise self.error(
                wanted=f"token {int(tokens[places[row]])} at place {int(places[row])} of window {number}",
                got=f"{int(kept.labels[row])}: the server has read other tokens",
                instead="check its version",
            )
        return replace(kept, sequences=torch.full((len(places),), number, device="cpu"), positions=places)

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        body = {"prompt": text, "add_special_tokens": special} | self._named
        answer = self._server.post("/tokenize", body)
        tokens = answer.body.get("tokens") if isinstance(answer.body, dict) else None
        if (
            not answer.is_good
            or not isinstance(tokens, list)
            or not all(type(each) is int for each in tokens)
        ):
            raise self.error(
                wanted="the tokens of a text from /tokenize, to compare them with the other model's",
                got=self._server.message(answer),
                instead="use vLLM, or SGLang 0.5.3 or newer",
            )
        return tokens

    def _first_token(self) -> int | None:
        if self.speaks == "openai":
            return None
        plain, whole = (self._tokenize("a", special=special) for special in (False, True))
        return whole[0] if whole[1:] == plain and whole != plain else None


def _recognize(server: Endpoint) -> tuple[str, str | None]:
    """Return a server's protocol, and the name of its model."""
    models = server.get("/v1/models")
    listed = models.body.get("data") if models.is_good and isinstance(models.body, dict) else None
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    name = first.get("id") if isinstance(first.get("id"), str) else None
    for path in ("/get_model_info", "/model_info"):
        if _has(server.get(path), "model_path"):
            return "sglang", name
    if name is not None and _has(server.get("/version"), "version"):
        return "vllm", name
    if _has(server.get("/props"), "default_generation_settings") or first.get("owned_by") == "llamacpp":
        raise ModelError.at(
            server.address,
            wanted="a server that gives log-probabilities of a prompt",
            got="llama-server, which gives them for generated tokens alone",
            instead=f"{WHO_CAN}, and the .gguf file itself can be named",
        )
    if name is not None:
        return "openai", name
    raise ModelError.at(
        server.address,
        wanted="a server of language models",
        got=(
            f"one that answers neither as vLLM, SGLang nor OpenAI's API does ({server.message(models)} "
            "for /v1/models)"
        ),
        instead="check the address and port",
    )


def _has(answer: Answer, field: str) -> bool:
    return answer.is_good and isinstance(answer.body, dict) and field in answer.body


def _choices(response: Any) -> list[JsonObject]:
    choices = response.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _largest_untold(others: JsonObject, text: str, value: Any, words: Mapping[str, int], top: int) -> float:
    """Return an upper bound on the log-probability of tokens that the list does not identify.

    `others` are the listed texts without the true token's `text`, and `words` are the texts that identify a token. A
    list keeps one token for each text. The other tokens of this text have at most the remaining probability.
    """
    if text in words and all(word in words for word in others):
        return -math.inf
    numbers = {word: float(each) for word, each in others.items() if isinstance(each, (int, float))}
    largest = max((each for word, each in numbers.items() if word not in words), default=-math.inf)
    # A true token with a smaller log-probability may come in addition to the list.
    in_list = value >= min(numbers.values(), default=math.inf)
    if len(numbers) < top - in_list:
        rest = 1 - sum(math.exp(min(each, 1)) for each in (*numbers.values(), value))
        largest = max(largest, math.log(max(rest, SMALLEST_REST)))
    return largest


def _only_ranked(block: PartialRows, ranked_above: list[float]) -> PartialRows:
    """Return a block with only the tokens that are more probable than every unidentified token."""
    limit = torch.tensor(ranked_above, dtype=block.top_log_probs.dtype, device="cpu")[block.positions]
    dropped = (block.top_log_probs <= limit.unsqueeze(-1)) & (block.top_log_probs != -torch.inf)
    if not bool(dropped.any()):
        return block
    log_probs = torch.where(dropped, -torch.inf, block.top_log_probs)
    tail = torch.where(dropped.any(-1), log_tail_mass(log_probs), block.tail_log_mass)
    return replace(block, top_log_probs=log_probs, tail_log_mass=tail)


def _agree(a: Any, b: Any) -> bool:
    """Return whether two lists of top tokens may come from one distribution, up to rounding."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    numbers = (int, float)
    shared = [
        word for word in a if word in b and isinstance(a[word], numbers) and isinstance(b[word], numbers)
    ]
    return 2 * len(shared) > min(len(a), len(b)) and all(abs(a[word] - b[word]) < ROUNDING for word in shared)
