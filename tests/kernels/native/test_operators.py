"""What the operators refuse: results of another shape, dtype, device or layout, which they would write past the end of.

Every case is a call that works, with one argument replaced; refused, it leaves all its arguments as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.kernels.codes import DivergenceCode, ElementForm, MatrixKind, Outcome, RowForm
from kullback.kernels.native import library

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

Call = dict[str, Any]
ROWS, CLASSES = 3, 8


def matrix(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(ROWS * CLASSES, dtype=dtype).view(ROWS, CLASSES).sin()


def numbers(count: int = ROWS) -> Tensor:
    return torch.full((count,), 0.5, dtype=torch.float64)


def divergence_of_rows() -> Call:
    return {
        "p": matrix(),
        "q": matrix() + 1,
        "weights": numbers(),
        "divergence": DivergenceCode.KL.value,
        "weight_p": 0.0,
        "share_p": 0.0,
        "weight_q": 0.0,
        "share_q": 0.0,
        "temperature": 1.0,
        "scale": 1.0,
        "labels": torch.tensor([2, 0, -1]),
        "labels_are_of_p": False,
        "soft": 0.5,
        "hard": 0.5,
        "values": numbers(),
        "total": torch.zeros((), dtype=torch.float64),
        "gradient_p": matrix(),
        "gradient_q": matrix(),
    }


def sums_of_some_classes() -> Call:
    call = {**divergence_of_rows(), "labels": None, "total": None, "gradient_p": None, "gradient_q": None}
    # Of each side: the peak, the sum of exponentials, and three sums that only gradients need.
    whole_rows = torch.tensor([[1.0, 5.0, 0.0, 0.0, 0.0] * 2] * ROWS, dtype=torch.float64)
    return {**call, "whole_rows": whole_rows, "sums": torch.zeros(ROWS, 6, dtype=torch.float64)}


def gradient_of_some_classes() -> Call:
    call = {**sums_of_some_classes(), "values": None, "sums": None}
    return {**call, "gradient_p": matrix(), "gradient_q": torch.zeros(ROWS, CLASSES, dtype=torch.float64)}


def kl_terms() -> Call:
    return {
        "log_q": matrix().log_softmax(-1),
        "target": matrix().softmax(-1),
        "logs": matrix().log_softmax(-1),
        "grad": torch.ones(ROWS, CLASSES),
        "divisor": 1.0,
        "scale": 1.0,
        "terms": matrix(),
        "total": torch.zeros(()),
        "by_log_q": matrix(),
        "by_target": matrix(),
    }


def kl_of_weights() -> Call:
    return {"p": matrix().softmax(-1), "q": matrix().softmax(-1), "tolerance": 1.0, "values": numbers()}


def closed_form() -> Call:
    size = matrix().exp()
    return {
        "form": ElementForm.NORMAL.value,
        "values": matrix(),
        "a": matrix(),
        "b": size,
        "c": matrix() + 1,
        "d": size * 2,
        **{f"by_{name}": matrix() for name in "abcd"},
    }


def closed_form_of_rows() -> Call:
    return {
        "form": RowForm.DIRICHLET.value,
        "values": torch.zeros(ROWS),
        "p": matrix().exp(),
        "q": matrix().exp() + 1,
        "by_p": matrix(),
        "by_q": matrix(),
    }


def closed_form_of_normals() -> Call:
    roots = torch.eye(CLASSES).expand(ROWS, CLASSES, CLASSES)
    return {
        "kind_p": MatrixKind.COVARIANCE.value,
        "kind_q": MatrixKind.FACTOR.value,
        "values": torch.zeros(ROWS),
        "loc_p": matrix(),
        "root_p": roots.clone(),
        "loc_q": matrix() + 1,
        "root_q": 2 * roots,
        "by_loc_p": matrix(),
        "by_root_p": roots.clone(),
        "by_loc_q": matrix(),
        "by_root_q": roots.clone(),
    }


def closed_form_of_factors() -> Call:
    return {
        "values": torch.zeros(ROWS),
        "loc_p": matrix(),
        "matrix_p": torch.eye(CLASSES)[:, :2].repeat(ROWS, 1, 1),
        "variances_p": matrix().exp(),
        "loc_q": matrix() + 1,
        "matrix_q": torch.eye(CLASSES).repeat(ROWS, 1, 1),
        "variances_q": None,
    }


def scale_derivatives() -> Call:
    return {
        "grad": torch.full((ROWS,), 2.0),
        "by_a": matrix(),
        "by_b": matrix(),
        "by_c": matrix(),
        "by_d": None,
    }


def selected_statistics() -> Call:
    return {
        "logits": matrix(),
        "indices": torch.tensor([[0, 3], [2, -1], [5, 1]]),
        "labels": torch.tensor([2, 0, -1]),
        "temperature": 2.0,
        "leaves_out": True,
        "selected": torch.zeros(ROWS, 2, dtype=torch.float64),
        "sums": torch.zeros(ROWS, 5, dtype=torch.float64),
    }


def selected_gradient() -> Call:
    call = selected_statistics()
    torch.ops.kullback.selected_statistics.default(**call)
    del call["selected"]
    call["by_selected"] = torch.full((ROWS, 2), 0.5, dtype=torch.float64)
    return {
        **call,
        "by_log_sum": numbers(),
        "by_cross_entropy": numbers(),
        "gradient": torch.zeros(ROWS, CLASSES),
    }


# By operator; words after its name say how it is called.
CALLS: dict[str, Callable[[], Call]] = {
    "value_and_gradient": divergence_of_rows,
    "value_and_gradient sums": sums_of_some_classes,
    "value_and_gradient part": gradient_of_some_classes,
    "selected_statistics": selected_statistics,
    "selected_gradient": selected_gradient,
    "kl_terms": kl_terms,
    "kl_of_weights": kl_of_weights,
    "closed_form": closed_form,
    "closed_form_of_rows": closed_form_of_rows,
    "closed_form_of_normals": closed_form_of_normals,
    "closed_form_of_factors": closed_form_of_factors,
    "scale_derivatives": scale_derivatives,
}
TENSORS = [
    (name, argument)
    for name, make in CALLS.items()
    for argument, value in make().items()
    if isinstance(value, Tensor)
]


def run(name: str, call: Call) -> object:
    return getattr(torch.ops.kullback, name.split(maxsplit=1)[0]).default(**call)


def too_small(x: Tensor) -> Tensor:
    return x[..., :-1].contiguous() if x.ndim else x.new_zeros(0)


def too_large(x: Tensor) -> Tensor:
    return torch.cat([x, x], -1) if x.ndim else x.new_zeros(2)


def turned(x: Tensor) -> Tensor:
    return (
        x.reshape(x.shape[::-1]).contiguous()
        if x.ndim == 2
        else x[None, :, None]
        if x.ndim
        else x.new_zeros(3)
    )


def of_another_dtype(x: Tensor) -> Tensor:
    return x.to(torch.int64 if x.is_floating_point() else torch.int32)


def without_data(x: Tensor) -> Tensor:
    return x.to("meta")


def of_repeated_memory(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape) if x.ndim else x.new_zeros(0)


CHANGES = [too_small, too_large, turned, of_another_dtype, without_data, of_repeated_memory]
# What an operator reads it may read in other layouts, or say that the caller has to bring it to another.
READ = {
    *(
        (f"value_and_gradient{how}", side, of_repeated_memory)
        for how in ("", " sums", " part")
        for side in "pq"
    ),
    ("scale_derivatives", "grad", of_repeated_memory),
    *((f"selected_{name}", "logits", of_repeated_memory) for name in ("statistics", "gradient")),
    # Rows of any number of classes.
    *(("selected_statistics", "logits", change) for change in (too_small, too_large)),
    *(("closed_form", name, of_repeated_memory) for name in "abcd"),
    # Factors of any number of columns.
    *(("closed_form_of_factors", "matrix_p", change) for change in (too_small, too_large)),
    # Derivatives by parameters of any size, as long as there are those of each value.
    *(("scale_derivatives", f"by_{name}", change) for name in "abc" for change in (too_small, too_large)),
}
OTHER_LAYOUT = {
    *(("closed_form", name, change) for name in ("values", *"abcd") for change in CHANGES),
    *(("closed_form_of_rows", name, change) for name in "pq" for change in CHANGES),
    *(
        ("closed_form_of_normals", name, of_repeated_memory)
        for name in ("loc_p", "root_p", "loc_q", "root_q")
    ),
    *(
        ("closed_form_of_factors", name, of_repeated_memory)
        for name in ("loc_p", "matrix_p", "variances_p", "loc_q", "matrix_q")
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_call_itself_works(name):
    call = CALLS[name]()
    before = {key: x.clone() for key, x in call.items() if isinstance(x, Tensor)}
    outcome = run(name, call)
    assert outcome in (None, True, Outcome.DONE)
    assert any(not torch.equal(x, call[key]) for key, x in before.items())


@pytest.mark.parametrize(("name", "argument"), TENSORS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_another_argument_is_refused_and_nothing_is_written(name, argument, change):
    call = CALLS[name]()
    if (name, argument, change) in READ:
        run(name, {**call, argument: change(call[argument])})
        return
    call[argument] = change(call[argument])
    before = {key: x.clone() for key, x in call.items() if isinstance(x, Tensor)}
    if (name, argument, change) in OTHER_LAYOUT:
        assert refused_or(name, call) in (None, Outcome.OTHER_LAYOUT)
    else:
        assert refused_or(name, call) is None
    for key, x in before.items():
        assert x.is_meta or torch.equal(x, call[key]), key


def refused_or(name: str, call: Call) -> object:
    """Run the call; return what it returns, or None where it is refused."""
    try:
        return run(name, call)
    except (RuntimeError, NotImplementedError):
        return None


@pytest.mark.parametrize("name", ["value_and_gradient", "closed_form", "closed_form_of_rows"])
@pytest.mark.parametrize("code", [-1, 99])
def test_numbers_that_mean_nothing_are_refused(name, code):
    call = CALLS[name]()
    key = "divergence" if name == "value_and_gradient" else "form"
    with pytest.raises(RuntimeError, match="no such"):
        run(name, {**call, key: code})


def test_row_values_are_those_of_the_other_operator_and_take_two_matrices_of_one_shape():
    p, q = matrix(), matrix() + matrix().cos()
    values = torch.ops.kullback.row_values.default
    for code, temperature in ((DivergenceCode.KL, 1.0), (DivergenceCode.JEFFREYS, 2.0)):
        call = {**divergence_of_rows(), "p": p, "q": q, "divergence": code.value, "temperature": temperature}
        run("value_and_gradient", {**call, "labels": None})
        settings = (code.value, 0.0, 0.0, 0.0, 0.0, temperature)
        for dtype in (torch.float32, torch.float64):
            got = values(p, q, dtype, settings)
            assert torch.equal(got, call["values"].to(dtype)), (code, dtype)
            if code == DivergenceCode.KL:
                assert torch.equal(values(p, q, dtype), got)
    for change in CHANGES:
        if change is of_repeated_memory:
            continue
        for sides in ((change(p), q), (p, change(q))):
            with pytest.raises((RuntimeError, NotImplementedError)):
                values(*sides, torch.float32)
    for dtype in (torch.float16, torch.int64):
        with pytest.raises(RuntimeError, match="float32 or float64"):
            values(p, q, dtype)
    with pytest.raises(RuntimeError, match="six settings"):
        values(p, q, torch.float32, (0.0, 1.0))
    for code in (-1.0, 99.0, torch.nan):
        with pytest.raises(RuntimeError, match="no such divergence"):
            values(p, q, torch.float32, (code, 0.0, 0.0, 0.0, 0.0, 1.0))


def test_some_classes_of_a_row_support_no_labels_and_only_sums_over_classes():
    for change in (
        {"labels": torch.tensor([2, 0, -1])},
        {"divergence": DivergenceCode.TOTAL_VARIATION.value},
        {"divergence": DivergenceCode.RENYI.value},
    ):
        with pytest.raises(RuntimeError, match="of some classes"):
            run("value_and_gradient", {**gradient_of_some_classes(), **change})
    for change in ({"whole_rows": None}, {"gradient_p": matrix()}):
        with pytest.raises(RuntimeError, match="sums over some classes"):
            run("value_and_gradient", {**sums_of_some_classes(), **change})


@pytest.mark.parametrize(("name", "argument"), [(n, a) for n, a in TENSORS if a in ("indices", "labels")])
def test_classes_that_no_row_has_are_refused(name, argument):
    call = CALLS[name]()
    call[argument][0] = CLASSES
    with pytest.raises(RuntimeError, match="no such class"):
        run(name, call)


def gradient_of_q(call: Call) -> Call:
    return {**call, "gradient_q": call["q"]}


def gradient_of_q_in_p(call: Call) -> Call:
    return {**call, "gradient_q": call["p"]}


def gradient_of_q_in_that_of_p(call: Call) -> Call:
    return {**call, "gradient_q": call["gradient_p"]}


def gradient_a_row_later(call: Call) -> Call:
    memory = torch.zeros(ROWS + 1, CLASSES)
    return {**call, "q": memory[:-1], "gradient_q": memory[1:]}


def gradient_of_columns_beside(call: Call) -> Call:
    memory = torch.zeros(ROWS, 2 * CLASSES)
    return {**call, "q": memory[:, :CLASSES], "gradient_q": memory[:, CLASSES:]}


def gradient_of_columns_that_overlap(call: Call) -> Call:
    memory = torch.zeros(ROWS, 2 * CLASSES)
    return {**call, "q": memory[:, :CLASSES], "gradient_q": memory[:, CLASSES - 1 : -1]}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (gradient_of_q, False),
        (gradient_of_columns_beside, False),
        (gradient_of_q_in_p, True),
        (gradient_of_q_in_that_of_p, True),
        (gradient_a_row_later, True),
        (gradient_of_columns_that_overlap, True),
    ],
)
def test_a_gradient_overlaps_nothing_but_its_own_logits(change, refused):
    call = change(divergence_of_rows())
    if refused:
        with pytest.raises(RuntimeError, match="overlaps"):
            run("value_and_gradient", call)
        return
    copies = {**call, "q": call["q"].clone(), "gradient_q": torch.zeros(ROWS, CLASSES)}
    run("value_and_gradient", copies)
    run("value_and_gradient", call)
    assert torch.equal(call["gradient_q"], copies["gradient_q"])


def test_the_gradient_of_selected_classes_overlaps_nothing_but_its_logits():
    call = selected_gradient()
    run("selected_gradient", call)
    copy = {**call, "logits": matrix()}
    run("selected_gradient", {**copy, "gradient": copy["logits"]})
    assert torch.equal(copy["logits"], call["gradient"])
    with pytest.raises(RuntimeError, match="overlaps"):
        run("selected_gradient", gradient_of_logits_a_row_later(call))


def gradient_of_logits_a_row_later(call: Call) -> Call:
    memory = torch.zeros(ROWS + 1, CLASSES)
    return {**call, "logits": memory[:-1], "gradient": memory[1:]}


def test_asking_for_large_pages_changes_nothing():
    for x in (torch.rand(3, 5), torch.rand(0), torch.rand(3 << 20), torch.rand(4, 5).t()):
        before = x.clone()
        torch.ops.kullback.ask_for_large_pages.default(x)
        assert torch.equal(x, before)
