"""The verb: what it accepts and refuses, broadcasting, dtypes, bases, estimates, and registration of rules."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import mpmath
import pandas as pd
import pytest
import torch
from torch import distributions as td

from kullback import (
    KL,
    Alpha,
    Counts,
    Jeffreys,
    JensenShannon,
    Logits,
    LogProbs,
    Probs,
    Renyi,
    ReverseKL,
    Samples,
    SkewKL,
    TotalVariation,
    compare_tables,
    dispatch,
    divergence,
    errors,
    estimate,
    kl_divergence,
    kl_estimate,
    register_kl,
)
from kullback.pairs import solve
from tests.oracles import truth
from tests.refusals import refused

LOGISTIC_NORMAL, DIRICHLET = td.LogisticNormal(torch.zeros(2), torch.ones(2)), td.Dirichlet(torch.ones(3))


pytestmark = pytest.mark.usefixtures("registered_rules")


def test_all_ways_of_saying_the_same_give_the_same() -> None:
    a, b = torch.randn(2, 3, 5, dtype=torch.float64)
    forms = [
        Logits,
        lambda x: LogProbs(x.log_softmax(-1)),
        lambda x: Probs(x.softmax(-1)),
        lambda x: Counts(x.exp()),
    ]
    want = kl_divergence(Logits(a), Logits(b))
    for p in forms:
        for q in forms:
            torch.testing.assert_close(kl_divergence(p(a), q(b)), want, rtol=1e-12, atol=1e-15)


def test_order_is_the_mathematics() -> None:
    p, q = [0.36, 0.48, 0.16], [1 / 3, 1 / 3, 1 / 3]
    for first, second in ((p, q), (q, p)):
        want = truth.divergence(KL(), truth.exact(first), truth.exact(second))
        got = kl_divergence(Probs(torch.tensor(first).double()), Probs(torch.tensor(second).double()))
        assert float(got) == pytest.approx(float(want), rel=1e-6)
    assert divergence(Probs(p), Probs(q), ReverseKL()) == kl_divergence(Probs(q), Probs(p))


def test_batches_broadcast_and_keep_their_dimensions() -> None:
    p, q = torch.randn(4, 1, 6), torch.randn(3, 6)
    value = kl_divergence(Logits(p), Logits(q))
    assert value.shape == (4, 3)
    for i in range(4):
        for j in range(3):
            assert value[i, j] == kl_divergence(Logits(p[i, 0]), Logits(q[j]))
    images = torch.randn(2, 6, 4, 5)
    torch.testing.assert_close(
        kl_divergence(Logits(images, dim=1), Logits(images.flip(1), dim=1)),
        kl_divergence(Logits(images.movedim(1, -1)), Logits(images.flip(1).movedim(1, -1))),
    )


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4)])
def test_empty_batches_give_empty_answers_with_gradients(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    value = kl_divergence(Logits(x), Logits(torch.zeros(4)))
    assert value.shape == shape[:-1]
    value.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


def test_integer_counts_take_the_other_side_s_dtype() -> None:
    counts = torch.tensor([2**30 + 1, 3])
    assert (
        kl_divergence(Counts(counts), Probs(torch.tensor([0.5, 0.5], dtype=torch.float64))).dtype
        == torch.float64
    )
    assert kl_divergence(Counts(counts), Counts(counts)) == 0
    assert kl_divergence(Counts(counts), Counts(counts)).dtype == torch.float32


def test_expanded_and_strided_inputs_are_read_right() -> None:
    base = torch.randn(5, 8)
    want = kl_divergence(Logits(base.t().contiguous()), Logits(torch.zeros(8, 5)))
    assert torch.equal(kl_divergence(Logits(base.t()), Logits(torch.zeros(1, 1).expand(8, 5))), want)


def test_base_changes_the_unit() -> None:
    p, q = Probs([1.0, 0.0]), Probs([0.5, 0.5])
    assert kl_divergence(p, q, base=2) == 1
    assert float(kl_divergence(p, q, base=10)) == pytest.approx(math.log10(2))
    estimate = kl_estimate(p, q, base=2)
    assert estimate.value == 1


TABLE = pd.DataFrame({"age": [1.0, 2.0, 3.0] * 20, "height": [2.0, 5.0, 1.0, 4.0] * 15})


def test_both_remedies_for_a_table_work() -> None:
    assert compare_tables(TABLE, TABLE).columns
    assert kl_divergence(Samples(TABLE), Samples(TABLE)) >= 0


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (
            lambda: kl_divergence(torch.zeros(3), Logits([0.0, 1.0])),
            TypeError,
            [
                "kl_divergence(p=...): a tensor does not say what it holds; wrap it: Logits(x), ",
                "LogProbs(x), Probs(x), Counts(x) or Samples(x)",
            ],
        ),
        (lambda: kl_divergence(Logits([0.0]), torch.zeros(1)), TypeError, ["kl_divergence(q=...)"]),
        (lambda: kl_divergence([0.5, 0.5], Probs([0.5, 0.5])), TypeError, ["got list", "wrap them"]),
        (
            lambda: kl_divergence(TABLE, TABLE),
            TypeError,
            ["got DataFrame", "kullback.compare_tables(p, q)", "Samples(x)"],
        ),
        (
            lambda: kl_divergence(td.Normal(torch.zeros(2), 1.0), td.Dirichlet(torch.ones(2))),
            ValueError,
            ["one shape; got Normal with event_shape () and Dirichlet with event_shape (2,)", "Independent("],
        ),
        (lambda: kl_divergence(Logits([0.0, 1.0]), Logits([0.0])), ValueError, ["2 in p", "1 in q", "dim="]),
        (
            lambda: kl_divergence(Logits(torch.zeros(2, 3)), Logits(torch.zeros(4, 3))),
            ValueError,
            ["broadcast", "(2,) in p and (4,) in q"],
        ),
        (
            lambda: kl_divergence(Logits(torch.zeros(3)), Logits(torch.zeros(3).double())),
            ValueError,
            ["one dtype", "torch.float32 in p and torch.float64 in q"],
        ),
        (
            lambda: kl_divergence(Logits(torch.zeros(3)), Logits(torch.zeros(3, device="meta"))),
            ValueError,
            ["same device", "cpu and meta"],
        ),
        (lambda: kl_divergence(Probs([1.0]), Probs([1.0]), base=1), ValueError, ["above 1"]),
        (lambda: kl_divergence(Probs([1.0]), Probs([1.0]), base=-2), ValueError, ["above 1"]),
        (
            lambda: divergence(Probs([1.0]), Probs([1.0]), TotalVariation(), base=2),
            ValueError,
            ["without a log"],
        ),
        (
            lambda: divergence(Probs([1.0]), Probs([1.0]), "kld"),
            ValueError,
            ["divergence(kind=...)", "'kld'"],
        ),
        (lambda: kl_divergence(Probs([1.0]), td.Normal(0.0, 1.0)), NotImplementedError, ["Probs and Normal"]),
        (
            lambda: kl_divergence(LOGISTIC_NORMAL, DIRICHLET),
            NotImplementedError,
            ["(LogisticNormal, Dirichlet)", "@register_kl", "method='monte_carlo'"],
        ),
        (
            lambda: divergence(td.LKJCholesky(3), td.LKJCholesky(3, 2.0), Alpha(alpha=2)),
            NotImplementedError,
            ["Alpha(alpha=2)", "LKJCholesky"],
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_remedy(
    call: object, error: type[Exception], parts: list[str]
) -> None:
    with pytest.raises(errors.KullbackError) as caught:
        call()  # type: ignore[operator]
    assert isinstance(caught.value, error)
    for part in parts:
        assert part in str(caught.value)


def test_distributions_are_answered_with_method_and_error() -> None:
    p, q = td.Normal(torch.tensor([0.0, 1.0]), 1.0), td.Normal(0.0, 2.0)
    forward, backward = td.kl_divergence(p, q), td.kl_divergence(q, p)
    torch.testing.assert_close(kl_divergence(p, q), forward)
    torch.testing.assert_close(divergence(p, q, ReverseKL()), backward)
    torch.testing.assert_close(divergence(p, q, Jeffreys()), forward + backward)
    torch.testing.assert_close(kl_divergence(p, q, base=2), forward / math.log(2))
    for method in ("closed_form", "quadrature"):
        estimate = kl_estimate(p, q, method=method)
        assert estimate.method == method
        assert estimate.error is not None
        assert (estimate.value - forward).abs().le(estimate.error + 1e-6 * forward).all()
    drawn = kl_estimate(p, q, method="monte_carlo", generator=torch.Generator().manual_seed(0))
    assert drawn.standard_error is not None
    assert (drawn.value - forward).abs().le(5 * drawn.standard_error).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_estimate_bounds_its_error(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-9, 1e-4, 1.0, 30.0):
        a = torch.randn(20, 9, generator=generator, dtype=dtype)
        b = (a + scale * torch.randn(20, 9, generator=generator, dtype=dtype)).to(dtype)
        estimate = kl_estimate(Logits(a), Logits(b))
        assert estimate.method == "summation"
        assert estimate.error is not None
        for x, y, value, error in zip(a, b, estimate.value, estimate.error, strict=True):
            want = truth.divergence(KL(), truth.softmax(x.tolist()), truth.softmax(y.tolist()))
            assert abs(mpmath.mpf(float(value)) - want) <= float(error)
            assert float(error) <= 1e-6 * float(want) + 1e-13
    assert kl_estimate(Probs([1.0, 0.0]), Probs([0.0, 1.0])).error == 0


class Base(td.Normal):
    pass


class Derived(Base):
    pass


@pytest.mark.parametrize("change", [{}, {"base": 2}, {"rtol": 1e-8}], ids=str)
def test_the_native_closed_forms_are_asked_once_for_a_pair(
    change: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def decline(p: object, q: object) -> None:
        asked.append(p)

    monkeypatch.setattr(dispatch, "fused_divergence", decline)
    monkeypatch.setattr(solve, "fused_divergence", decline)
    p, q = td.Normal(torch.zeros(2), 1.0), td.Normal(torch.ones(2), 1.0)
    unit = math.log(change.get("base", math.e))
    assert kl_divergence(p, q, **change).tolist() == pytest.approx([0.5 / unit] * 2)
    assert asked == [p]
    asked.clear()
    assert kl_divergence(td.Independent(p, 1), td.Independent(q, 1), **change).item() == pytest.approx(
        1 / unit
    )
    assert asked.count(p) == 1


def calls_of(function: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the calls of kullback's functions, in their order."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and "/kullback/" in file:
            calls.append((file.rpartition("/kullback/")[2], frame.f_code.co_qualname))

    function()  # makes the plan
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_equal_options_take_the_same_path() -> None:
    x, y = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    pairs = [
        (td.Normal(x, 1.0), td.Normal(y, 2.0)),
        (td.StudentT(5 * y), td.Normal(x, 1.0)),
        (Logits(x), Logits(y.cumsum(0))),
    ]
    spelled: list[dict[str, Any]] = [
        {"atol": float("0.0")},
        {"rtol": None, "method": "-auto"[1:], "base": None},
        {"draws": int("10000"), "max_evaluations": int("10000"), "generator": None},
    ]
    for p, q in pairs:
        default = calls_of(lambda p=p, q=q: kl_divergence(p, q))
        for options in spelled:
            assert calls_of(lambda p=p, q=q, o=options: kl_divergence(p, q, **o)) == default, (p, options)
    assert len(calls_of(lambda: kl_divergence(*pairs[0], rtol=1e-3, draws=77))) == 9


def test_options_are_checked_at_every_call() -> None:
    p, q = td.Normal(0.0, 1.0), td.Normal(1.0, 1.0)
    for name, good, bad in (
        ("atol", 0.0, False),
        ("rtol", 1e-3, torch.tensor(1e-3)),
        ("draws", 10_000, 10_000.0),
        ("max_evaluations", 1, True),
        ("max_evaluations", 10, [10]),
        ("rtol", 1.0, {}),
    ):
        kl_divergence(p, q, **{name: good})
        for call in (kl_divergence, kl_estimate, estimate):
            with refused(errors.ArgumentValueError, call=call.__name__, argument=name):
                call(p, q, **{name: bad})
    most = torch.tensor(10_000)  # a count that changes is read again
    locs, scales = (torch.tensor(x).double() for x in ([0.0, 1.3, 2.7, 4.1, 9.2], [0.1, 0.2, 0.05, 0.3, 1.0]))
    mixed = td.MixtureSameFamily(td.Categorical(torch.ones(5).double()), td.Laplace(locs, scales))
    pair = mixed, td.Cauchy(0 * locs[0], 1.0), Alpha(0.3)
    divergence(*pair, rtol=1e-12, max_evaluations=most)
    with pytest.raises(errors.ConvergenceError):
        divergence(*pair, rtol=1e-12, max_evaluations=most.fill_(1000))


def test_the_most_specific_rule_wins_and_comes_before_torch_s() -> None:
    @register_kl(Base, Base)
    def kl_base_base(p: Base, q: Base) -> torch.Tensor:
        return torch.tensor(1.0)

    @register_kl(Derived, Base)
    def kl_derived_base(p: Derived, q: Base) -> torch.Tensor:
        return torch.tensor(2.0)

    assert kl_base_base.__name__ == "kl_base_base"
    assert kl_divergence(Base(0.0, 1.0), Derived(0.0, 1.0)) == 1
    assert kl_divergence(Derived(0.0, 1.0), Derived(0.0, 1.0)) == 2
    assert kl_divergence(td.Normal(0.0, 1.0), Base(0.0, 1.0)) == 0
    assert (Base, Base) not in td.kl._KL_REGISTRY


def test_a_kept_decorator_replaces_no_rule() -> None:
    register = register_kl(Derived, Base)
    register(lambda p, q: torch.tensor(1.0))
    with refused(errors.RegistrationError, got=r"\(Derived, Base\), which .* serves"):
        register(lambda p, q: torch.tensor(2.0))
    assert kl_divergence(Derived(0.0, 1.0), Base(0.0, 1.0)) == 1


def test_registration_refuses_duplicates_ambiguity_and_other_types() -> None:
    register_kl(Derived, Base)(lambda p, q: torch.tensor(1.0))
    with refused(errors.RegistrationError, got=r"\(Derived, Base\), which .* serves"):
        register_kl(Derived, Base)
    with refused(errors.RegistrationError, instead=r"@register_kl\(Derived, Derived\) first"):
        register_kl(Base, Derived)
    register_kl(Derived, Derived)(lambda p, q: torch.tensor(2.0))
    register_kl(Base, Derived)(lambda p, q: torch.tensor(3.0))
    assert kl_divergence(Derived(0.0, 1.0), Derived(0.0, 1.0)) == 2
    for wrong in (int, torch.Tensor, Base(0.0, 1.0)):
        with refused(errors.ArgumentTypeError, call="register_kl", argument="type_q"):
            register_kl(Base, wrong)  # type: ignore[arg-type]


def test_a_type_that_two_rules_match_equally_is_an_error() -> None:
    class One(td.Distribution):
        pass

    class Two(td.Distribution):
        pass

    class Both(One, Two):
        pass

    register_kl(One, td.Distribution)(lambda p, q: torch.tensor(1.0))
    register_kl(Two, td.Distribution)(lambda p, q: torch.tensor(2.0))
    both = Both(validate_args=False)
    with refused(errors.NoRuleError, got=r"none more specific"):
        kl_divergence(both, both)


def test_values_are_not_looked_at_under_transforms_or_without_data() -> None:
    x = torch.randn(3, 4).softmax(-1)
    assert torch.func.vmap(lambda row: kl_divergence(Probs(row), Probs(row.flip(-1))))(x).shape == (3,)
    assert kl_divergence(Probs(x.to("meta")), Probs(x.to("meta"))).shape == (3,)


@pytest.mark.parametrize("family", [td.Categorical, td.OneHotCategorical])
@pytest.mark.parametrize("given", ["probs", "logits"])
def test_a_categorical_meets_tensors_that_say_what_they_hold(
    family: type[td.Distribution], given: str
) -> None:
    p, q = torch.tensor([[0.2, 0.3, 0.5], [0.9, 0.1, 0.0]]), torch.tensor([0.3, 0.3, 0.4])
    known = family(**{given: p if given == "probs" else p.log()})
    for other in (Probs(q), Logits(q.log() + 3), LogProbs(q.log()), Counts(q * 7)):
        for kind in (KL(), ReverseKL(), TotalVariation(), Jeffreys()):
            torch.testing.assert_close(divergence(known, other, kind), divergence(Probs(p), other, kind))
            torch.testing.assert_close(divergence(other, known, kind), divergence(other, Probs(p), kind))
        found = kl_estimate(known, other)
        assert found.method == "summation"
        assert found.error is not None
    with pytest.raises(errors.NoRuleError):
        kl_divergence(td.Normal(0.0, 1.0), Probs(q))


@pytest.mark.parametrize("base", [0.5, 1, 0, -2.0, math.inf, math.nan, "2", True])
def test_a_base_that_makes_no_unit_is_refused(base: object) -> None:
    with refused(errors.ArgumentValueError, argument="base", wanted="^a number above 1"):
        kl_divergence(Probs([0.5, 0.5]), Probs([0.25, 0.75]), base=base)


@pytest.mark.parametrize("kind", [Renyi, Alpha, SkewKL, JensenShannon])
def test_an_order_that_is_no_number_is_refused(kind: type) -> None:
    with refused(errors.ArgumentTypeError, wanted="^a number"):
        kind("x")


def test_every_method_of_an_estimate_is_a_word_that_method_takes_back() -> None:
    pairs = [
        (Probs([0.5, 0.5]), Probs([0.25, 0.75])),
        (td.Normal(0.0, 1.0), td.Normal(1.0, 1.0)),
        (td.Normal(0.0, 1.0), td.StudentT(3.0)),
        (td.Poisson(2.0), td.Geometric(0.5)),
        (td.RelaxedOneHotCategorical(torch.tensor(1.0), torch.ones(3)),) * 2,
        (td.Categorical(torch.ones(3)), Counts([1, 2, 3])),
    ]
    for p, q in pairs:
        found = kl_estimate(p, q)
        again = kl_estimate(p, q, method=found.method)
        assert again.method == found.method != "auto"
        assert torch.equal(again.value, found.value)


def test_the_standard_error_of_draws_is_in_the_unit_of_the_value() -> None:
    p, q = td.Normal(0.0, 1.0), td.StudentT(3.0)
    nats, bits = (
        kl_estimate(p, q, method="monte_carlo", base=base, generator=torch.Generator().manual_seed(1))
        for base in (None, 2)
    )
    assert nats.standard_error is not None
    torch.testing.assert_close(bits.standard_error * math.log(2), nats.standard_error)
    torch.testing.assert_close(bits.value * math.log(2), nats.value)


@pytest.mark.parametrize("shape", [(64, 10), (10,), (2, 3, 32), (5, 33), (0, 4)])
def test_short_rows_of_logits_have_the_values_and_gradients_of_long_ones(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (4 * torch.randn(2, *shape, generator=generator, dtype=torch.float64)).unbind()
    x[..., 0] = -torch.inf
    y[..., :1] = -torch.inf
    leaves = x.requires_grad_(), y.requires_grad_()
    found = kl_divergence(Logits(x), Logits(y))
    # 40 more classes without mass on either side.
    longer = [torch.nn.functional.pad(leaf, (0, 40), value=-torch.inf) for leaf in leaves]
    expected = kl_divergence(Logits(longer[0]), Logits(longer[1]))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)
    gradients = (torch.autograd.grad(value.square().sum(), leaves) for value in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)
    assert not bool(kl_divergence(Logits(x), Logits(x)).any())


def _hostile_logits(size: float, dtype: torch.dtype, classes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, classes, generator=generator, dtype=torch.float64).to(dtype).unbind()
    x = x.tanh()
    wide = x * 0 - size
    wide[:3] = torch.tensor([size, -size, 0.0], dtype=dtype)
    masked = x + size
    masked[0] = torch.finfo(dtype).min if size < 1e290 else -size  # beyond, 1e-8 is lost
    uniform = x * 0 + size
    return [
        (wide, y),
        (x + size / 2, y - size / 4),
        (wide, wide.roll(1) / 8),
        (size * x, size * x / 2),
        (wide * 1e-7, uniform),  # both far from 0, and from one another
        (uniform / 3, wide * 1e-7),
        (masked, y),
    ]


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("classes", [3, 20, 50])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1e3, 1e8, 1e16, 1e30, 1e38, 1e300])
def test_logits_of_any_size_cost_no_digits(size: float, dtype: torch.dtype, classes: int, rows: int) -> None:
    largest = torch.finfo(dtype).max
    kinds = [KL(), ReverseKL(), JensenShannon(), Alpha(0.5), Renyi(2.0)]
    with mpmath.workdps(60):
        for pair in _hostile_logits(min(size, largest / 4), dtype, classes):
            a, b = (x.repeat(rows, 1).requires_grad_() for x in pair)
            p, q = (truth.softmax(side[0].tolist()) for side in (a, b))
            found = kl_divergence(Logits(a), Logits(b))
            (by_q,) = torch.autograd.grad(found.sum(), b)
            difference = torch.tensor([float(j - i) for i, j in zip(p, q, strict=True)], dtype=torch.float64)
            torch.testing.assert_close(by_q[0].double(), difference, rtol=1e-6, atol=1e-7)
            for kind in kinds:
                found = divergence(Logits(a), Logits(b), kind).detach()
                expected = truth.divergence(kind, p, q)
                wanted = torch.tensor(
                    float(expected) if expected <= largest else math.inf, dtype=dtype
                ).expand(rows)
                rtol, atol = (1e-12, 1e-30) if dtype is torch.float64 else (2e-6, 1e-13)
                torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


def test_kl_estimate_is_estimate_of_kl_and_each_error_names_its_call() -> None:
    p, q = Probs(torch.tensor([0.25, 0.75])), Probs(torch.tensor([0.5, 0.5]))
    ours, general = kl_estimate(p, q, base=2), estimate(p, q, base=2)
    assert (ours.value, ours.error, ours.method, ours.kind) == (
        general.value, general.error, general.method, general.kind,
    )  # fmt: skip
    assert float(estimate(p, q, TotalVariation()).value) == 0.25
    for call in (kl_estimate, estimate):
        with refused(errors.ArgumentValueError, call=call.__name__, argument="confidence"):
            call(p, q, confidence=2.0)
        with refused(errors.ArgumentTypeError, call=call.__name__, argument="q"):
            call(p, torch.zeros(2))
    with refused(
        errors.ArgumentTypeError, call="kl_estimate", argument="kind", instead=r"^estimate\(p, q, kind\)"
    ):
        kl_estimate(p, q, kind="tv")  # type: ignore[call-arg]
