"""A small HTTP server of a tiny model, for tests: it speaks as vLLM, SGLang, llama-server or OpenAI's API document.

It computes with transformers. `server` makes it for a thread; ``python -m tests.models.tiny_server FOLDER`` runs it in
a process of its own, and prints its port when it listens. The first part of a path says how it answers: ``/vllm``,
``/sglang``, ``/openai``, ``/llama-server``, ``/recorded-...`` or ``/nothing``, with options behind it as in
``/vllm;busy=2``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import torch

MAX_LOGPROBS = 20  # vLLM's default


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Model:
    """The model and tokenizer of a folder."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.classes = self.model.config.vocab_size
        self.length = self.model.config.max_position_embeddings
        self._lock = threading.Lock()

    def log_probs(self, ids: list[int]) -> torch.Tensor:
        """The log-probabilities after each token, float32, shape (tokens, classes)."""
        if not ids or not all(type(token) is int and 0 <= token < self.classes for token in ids):
            raise Refused(400, "Token id out of vocabulary")
        with self._lock, torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0].log_softmax(-1)

    def text(self, token: int) -> str:
        """The text of a token, which need not be a whole character."""
        return self.tokenizer.decode([token], skip_special_tokens=False)

    def words(self, log_probs: torch.Tensor, k: int, true: int) -> dict[str, float]:
        """The top tokens by their text and the true one, as OpenAI's completions list them."""
        values, indices = log_probs.topk(k)
        found = dict(zip(map(self.text, indices.tolist()), values.tolist(), strict=True))
        return found | {self.text(true): float(log_probs[true])}


def vllm_completion(model: Model, body: dict[str, Any]) -> Any:
    ids, k = body["prompt"], body["prompt_logprobs"]
    if k > MAX_LOGPROBS:
        raise Refused(
            400, f"Requested prompt logprobs of {k}, which is greater than max allowed: {MAX_LOGPROBS}"
        )
    if len(ids) + body["max_tokens"] > model.length + 1:
        raise Refused(400, f"This model's maximum context length is {model.length} tokens.")
    found: list[Any] = [None]
    for true, log_probs in zip(ids[1:], model.log_probs(ids)[:-1], strict=True):
        values, indices = log_probs.topk(k)
        rank = 1 + int((log_probs > log_probs[true]).sum())
        entries = {str(true): _vllm_entry(model, true, float(log_probs[true]), rank)}
        for place, (value, token) in enumerate(zip(values.tolist(), indices.tolist(), strict=True), 1):
            entries.setdefault(str(token), _vllm_entry(model, token, value, place))
        found.append(entries)
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length", "prompt_logprobs": found}
    return {"id": "cmpl-0", "object": "text_completion", "model": body["model"], "choices": [choice]}


def _vllm_entry(model: Model, token: int, value: float, rank: int) -> dict[str, Any]:
    return {"logprob": value, "rank": rank, "decoded_token": model.text(token)}


def sglang_generate(model: Model, body: dict[str, Any]) -> Any:
    ids, k, start = body["input_ids"], body["top_logprobs_num"], body["logprob_start_len"]
    log_probs = model.log_probs(ids)
    true: list[Any] = [[None, ids[start], None]]
    top: list[Any] = [None]
    for place in range(start + 1, len(ids)):
        values, indices = log_probs[place - 1].topk(k)
        true.append([float(log_probs[place - 1, ids[place]]), ids[place], None])
        top.append(
            [[value, token, None] for value, token in zip(values.tolist(), indices.tolist(), strict=True)]
        )
    meta = {"prompt_tokens": len(ids), "input_token_logprobs": true, "input_top_logprobs": top}
    return {"text": "", "meta_info": meta | {"completion_tokens": 1}}


def openai_completion(model: Model, body: dict[str, Any]) -> Any:
    """A completion with ``echo``; llama-cpp-python's leaves BOS out and nulls the first token after it."""
    starts = not body.get("bare")
    ids = model.tokenizer(body["prompt"], add_special_tokens=starts)["input_ids"]
    log_probs = model.log_probs(ids)
    k, new = body["logprobs"], int(log_probs[-1].argmax())
    rows = [(ids[place], log_probs[place - 1]) for place in range(1, len(ids))] + [(new, log_probs[-1])]
    if not starts:  # as llama-cpp-python does without BOS: each token with the distribution after it
        rows = [(ids[place], log_probs[place]) for place in range(len(ids))] + [(new, log_probs[-1])]
    rows = rows if body["echo"] else rows[-1:]
    held = {
        "tokens": [model.text(token) for token, _ in rows],
        "token_logprobs": [float(row[token]) for token, row in rows],
        "top_logprobs": [model.words(row, k, token) for token, row in rows],
    }
    if body["echo"]:
        held["token_logprobs"][0] = held["top_logprobs"][0] = None
    return {"object": "text_completion", "choices": [{"index": 0, "text": "", "logprobs": held}]}


def tokenize(model: Model, body: dict[str, Any]) -> Any:
    found = model.tokenizer(body["prompt"], add_special_tokens=body["add_special_tokens"])["input_ids"]
    return {"count": len(found), "max_model_len": model.length, "tokens": found}


ROUTES: dict[str, dict[str, Any]] = {
    "vllm": {
        "/version": lambda *_: {"version": "0.15.0"},
        "/v1/models": lambda *_: {"object": "list", "data": [{"id": "tiny", "owned_by": "vllm"}]},
        "/v1/completions": vllm_completion,
        "/tokenize": tokenize,
    },
    "sglang": {
        "/get_model_info": lambda *_: {"model_path": "tiny", "is_generation": True},
        "/v1/models": lambda *_: {"object": "list", "data": [{"id": "tiny", "owned_by": "sglang"}]},
        "/generate": sglang_generate,
        "/tokenize": tokenize,
    },
    "openai": {
        "/v1/models": lambda *_: {"object": "list", "data": [{"id": "tiny", "owned_by": "me"}]},
        "/v1/completions": openai_completion,
    },
    "llama-server": {
        "/props": lambda *_: {"default_generation_settings": {}, "total_slots": 1},
        "/v1/models": lambda *_: {"object": "list", "data": [{"id": "tiny", "owned_by": "llamacpp"}]},
    },
    "nothing": {},
}
# Answers in the documented forms of vLLM and SGLang; SGLang's numbers are those of sgl-project/sglang-jax#13.
RECORDED = Path(__file__).resolve().parents[1] / "data" / "served.json"
for _name, _answers in json.loads(RECORDED.read_text(encoding="utf-8")).items():
    ROUTES[f"recorded-{_name}"] = {path: lambda *_, found=found: found for path, found in _answers.items()}


class Handler(BaseHTTPRequestHandler):
    """Answers as the first part of the path says.

    Options: ``key=`` asks for a key; ``busy=n`` answers the first n requests to the model with 503; ``die=n`` ends the
    process at the request after n; ``redirect`` leads elsewhere; ``bare`` leaves out BOS; ``damage=`` changes the
    answers of the model.
    """

    protocol_version = "HTTP/1.1"
    model: Model
    requests: ClassVar[Counter[str]] = Counter()  # to the model, by the first part of the path

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: Any) -> None:
        _, how, *rest = self.path.split("/")
        speaks, *given = how.split(";")
        options = dict(each.partition("=")[::2] for each in given)
        path = "/" + "/".join(rest)
        route = ROUTES[speaks].get(path)
        if "redirect" in options:
            self._send(307, {}, {"Location": f"http://localhost:1{self.path}"})
        elif "key" in options and self.headers.get("Authorization") != f"Bearer {options['key']}":
            self._send(401, {"error": f"Unauthorized: got {self.headers.get('Authorization')}"})
        elif route is None:
            self._send(404, {"detail": "Not Found"})
        elif path not in ("/v1/completions", "/generate"):
            self._send(200, route(self.model, body))
        else:
            self._compute(how, options, route, body)

    def _compute(self, how: str, options: dict[str, str], route: Any, body: Any) -> None:
        self.requests[how] += 1
        if self.requests[how] > int(options.get("die", 1 << 30)):
            os._exit(1)
        if self.requests[how] <= int(options.get("busy", 0)):
            self._send(503, {"error": {"message": "loading"}}, {"Retry-After": "0"})
            return
        try:
            found = route(self.model, {**body, "bare": "bare" in options})
            self._send(200, damaged(found, options.get("damage", "")))
        except Refused as refused:
            self._send(refused.status, {"error": {"message": str(refused), "code": refused.status}})

    def _send(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def damaged(answer: Any, damage: str) -> Any:
    """Change an answer of vLLM's, at its last position, as asked."""
    rows = answer["choices"][0]["prompt_logprobs"] if damage else []
    if damage == "positive":
        next(iter(rows[-1].values()))["logprob"] = 3.5
    elif damage == "short":
        del rows[-3:]
    elif damage == "other":
        answer["choices"][0]["prompt_token_ids"] = [2] * len(rows)
    elif damage == "long":
        answer["padding"] = "x" * 20_000_000
    elif damage == "none":
        answer["choices"][0]["prompt_logprobs"] = None
    return answer


def server(folder: str) -> ThreadingHTTPServer:
    """A server of a folder's model, the only one of a process, at a free port."""
    Handler.model = Model(folder)
    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def main() -> None:
    listening = server(sys.argv[1])
    print(listening.server_address[1], flush=True)  # noqa: T201 - the test reads it
    listening.serve_forever()


if __name__ == "__main__":
    main()
