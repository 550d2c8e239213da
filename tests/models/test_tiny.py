"""The tiny models of these tests: the same weights by seed, and what they are made for."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from tests.models import tiny


def test_the_seed_decides_the_weights():
    first, second, other = (tiny.make_model(seed).lm_head.weight for seed in (3, 3, 4))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_making_a_model_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    tiny.make_model(5)
    assert torch.equal(before, torch.get_rng_state())


def test_noise_and_rounding_make_another_model_nearby():
    base, noisy = tiny.make_model(0), tiny.make_model(0, noise=0.01)
    rounded = tiny.round_to_int8(tiny.make_model(0))
    for near in (noisy, rounded):
        change = (near.lm_head.weight - base.lm_head.weight).abs().max() / base.lm_head.weight.abs().max()
        assert 0 < change < 0.02


def test_the_tokenizer_gives_every_text_back():
    tokenizer = tiny.make_tokenizer()
    for words in (tiny.text(), "naïve café \N{SNOWMAN}\n\t  end"):
        assert tokenizer.decode(tokenizer(words, add_special_tokens=False)["input_ids"]) == words
    assert len(tokenizer) == tiny.TOKENS
    assert tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id == 0
    assert tiny.make_tokenizer(adds_bos=False)("a")["input_ids"][0] != 0
