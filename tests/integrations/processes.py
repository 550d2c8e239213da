"""Trained steps of the adapters, in one process or in two that share each batch: `python -m ... FOLDER`."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.integrations.tiny import arguments, examples, language_models, losses

STEPS, ROWS = 4, 8  # the rows of a step, in all processes
# Lightning removes these variables when its first trainer is done.
RANK, SIZE = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))


def settings(**others: Any) -> dict[str, Any]:
    """Settings of a trainer that descends without Adam, whose steps depend on the last digit of small gradients."""
    return {
        "max_steps": STEPS,
        "logging_steps": 1,
        "per_device_train_batch_size": ROWS // 2 // SIZE,
        "gradient_accumulation_steps": 2,
        "optim": "sgd",
        "learning_rate": 0.5,
        "lr_scheduler_type": "constant",
    } | others


def whole(parameter: Tensor) -> Tensor:
    parameter = parameter.detach()
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.clone()


def trained(trainer: Any, sharded: bool) -> dict[str, Any]:
    if sharded:
        fully_sharded(trainer)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    return {
        "losses": losses(trainer),
        "weights": {name: whole(x) for name, x in model.named_parameters()},
        "parallel": type(trainer.model_wrapped).__mro__[0].__name__,
    }


def fully_sharded(trainer: Any) -> Any:
    """Have accelerate shard the student with FSDP2, as it does on GPUs; on CPUs it ignores `fsdp=True`."""
    from accelerate import DistributedType, FullyShardedDataParallelPlugin

    if SIZE > 1:
        state = trainer.accelerator.state
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            reshard_after_forward=True,
            cpu_ram_efficient_loading=False,
        )
        trainer.is_fsdp_enabled = True
    return trainer


def huggingface(folder: Path, loss: Any, sharded: bool, saved: bool = False) -> dict[str, Any]:
    from kullback.integrations.huggingface import DistillationTrainer

    student, teacher = language_models()
    if saved:
        import peft

        torch.manual_seed(1)
        config = peft.LoraConfig(
            r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"
        )
        student = peft.get_peft_model(student, config)
    return trained(
        DistillationTrainer(
            student,
            arguments(folder, **settings()),
            teacher=teacher,
            loss=loss(kind="js:0.3"),
            train_dataset=examples(),
        ),
        sharded,
    )


def distillation(folder: Path, loss: Any, sharded: bool) -> dict[str, Any]:
    """TRL's stable trainer; `top_k=1` makes the generated tokens the same in each process."""
    from tests.integrations.test_trl_distillation import DistillationTrainer, left_padding, trainer_of

    of_trl = settings(top_k=1, temperature=1.5)
    return trained(trainer_of(DistillationTrainer, folder, left_padding(), loss=loss(), **of_trl), sharded)


def gkd(folder: Path, loss: Any, sharded: bool) -> dict[str, Any]:
    from tests.integrations.test_trl import GKDTrainer, make_tokenizer, trainer_of

    tokenizer = make_tokenizer(tokens=300)
    return trained(trainer_of(GKDTrainer, folder, tokenizer, loss(), **settings(bf16=False)), sharded)


class Rows(Dataset[Any]):
    """Rows that all count, because Lightning gives each batch the same weight."""

    def __len__(self) -> int:
        return STEPS * ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = examples(len(self))[index]
        return {"input_ids": row["input_ids"], "labels": row["input_ids"]}


def lightning(folder: Path, loss: Any, sharded: bool) -> dict[str, Any]:
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    from kullback.integrations.lightning import DistillationModule
    from tests.integrations.test_lightning import sgd, trainer

    class Module(DistillationModule):
        def configure_model(self) -> None:
            if SIZE > 1 and sharded and not hasattr(self.student, "unshard"):
                for layer in self.student.model.layers:
                    fully_shard(layer, mesh=self.device_mesh["data_parallel"])
                fully_shard(self.student, mesh=self.device_mesh["data_parallel"])

    student, teacher = language_models()
    module = Module(student, teacher, loss(kind="kl"), optimizer=sgd(0.5), causal=True)
    parallel: dict[str, Any] = {}
    if SIZE > 1:
        strategy = ModelParallelStrategy(SIZE, 1) if sharded else DDPStrategy(process_group_backend="gloo")
        parallel = {"devices": SIZE, "strategy": strategy}
    runner = trainer(folder, max_epochs=1, use_distributed_sampler=False, **parallel)
    values: list[float] = []
    module.on_train_batch_end = lambda *_: values.append(float(runner.callback_metrics["train_loss"]))  # type: ignore[method-assign]
    rows = Rows()
    share = DistributedSampler(rows, SIZE, RANK, shuffle=False)
    runner.fit(module, DataLoader(rows, batch_size=ROWS // SIZE, sampler=share))
    # The processes have different numbers of counted tokens, of an odd sum.
    counted: Any = examples(24)
    assert sum(int((row["labels"][1:] != -100).sum()) for row in counted) % 2
    share = DistributedSampler(counted, SIZE, RANK, shuffle=False)
    [epoch] = runner.validate(module, DataLoader(counted, batch_size=3, sampler=share), verbose=False)
    return {
        "losses": [*values, epoch["val_loss"]],
        "weights": {name: whole(x) for name, x in module.student.named_parameters()},
        "parallel": type(runner.strategy).__name__,
    }


def saved_head(folder: Path, loss: Any, sharded: bool) -> dict[str, Any]:
    return huggingface(folder, loss, sharded, saved=True)


CASES = {
    f"{case.__name__} {loss.__name__} {'fsdp2' if sharded else 'ddp'}": partial(
        case, loss=loss, sharded=sharded
    )
    for case in (huggingface, saved_head, distillation, gkd, lightning)
    for loss in (DistillationLoss, LinearDistillationLoss)
    for sharded in (False, True)
}


def run(name: str) -> dict[str, Any] | str:
    """The result of a case, or its error."""
    from accelerate.state import AcceleratorState, GradientState

    try:
        with tempfile.TemporaryDirectory() as folder:
            return CASES[name](Path(folder))
    except Exception:  # noqa: BLE001 - the test that asks for the case shows it
        return traceback.format_exc()
    finally:  # a later trainer of this process may use another strategy
        AcceleratorState._reset_state()
        GradientState._reset_state()


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    if SIZE > 1:
        store = f"file://{folder / 'store'}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=RANK, world_size=SIZE)
    torch.save({name: run(name) for name in CASES}, folder / f"{RANK} of {SIZE}")
    if SIZE > 1:
        torch.distributed.destroy_process_group()
