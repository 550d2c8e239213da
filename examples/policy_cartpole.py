"""Policy optimization under a KL constraint: CartPole with a limit on the change of each update.

Each iteration plays 8 poles for 128 steps, estimates advantages, and takes 20 gradient steps on the importance-weighted
advantage. Without a constraint, the policy moves far from the one that collected the data. With it, the loss has a term
coefficient * KL(old policy || new policy), computed exactly from the two action distributions of every state, and
`KLRegularizer` adapts the coefficient until an update moves the policy by the target. Run it with
`python examples/policy_cartpole.py`; it needs gymnasium and takes about a minute.
"""

from __future__ import annotations

import statistics
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from written import arguments, write

from kullback.nn import AdaptiveKLController, KLRegularizer, kl_per_dimension

POLES, STEPS, UPDATES = 8, 128, 20
DISCOUNT, SMOOTHING = 0.99, 0.95
TARGET = 0.01
UNCONSTRAINED, CONSTRAINED = "without constraint", f"KL target {TARGET}"


def network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, outputs))


def play(
    policy: nn.Module, envs: Any, states: np.ndarray
) -> tuple[Tensor, Tensor, Tensor, Tensor, np.ndarray]:
    """States (steps + 1, poles, 4), actions, rewards and whether the pole fell at each step."""
    seen, actions, rewards, ended = [states], [], [], []
    with torch.no_grad():
        for _ in range(STEPS):
            action = Categorical(logits=policy(torch.from_numpy(states))).sample()
            states, reward, fell, cut, _ = envs.step(action.numpy())
            seen.append(states)
            actions.append(action)
            rewards.append(reward)
            ended.append(fell | cut)
    numbers = (torch.from_numpy(np.stack(x)).float() for x in (seen, rewards, ended))
    seen_, rewards_, ended_ = numbers
    return seen_, torch.stack(actions), rewards_, ended_, states


def advantages(values: Tensor, rewards: Tensor, ended: Tensor) -> Tensor:
    """Generalized advantage estimates; after its end, an episode has no more rewards."""
    estimates, ahead = torch.zeros_like(rewards), torch.zeros(POLES)
    for t in reversed(range(STEPS)):
        goes_on = 1 - ended[t]
        surprise = rewards[t] + DISCOUNT * goes_on * values[t + 1] - values[t]
        ahead = estimates[t] = surprise + DISCOUNT * SMOOTHING * goes_on * ahead
    return estimates


def train(regularizer: KLRegularizer | None, iterations: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    policy, critic = network(2), network(1)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=1e-2)
    envs = gymnasium.make_vec(
        "CartPole-v1",
        num_envs=POLES,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )
    states, _ = envs.reset(seed=seed)
    if regularizer is not None:
        regularizer.eval()
    ends, moved, coefficients = [], [], []
    for _ in range(iterations):
        seen, actions, rewards, ended, states = play(policy, envs, states)
        with torch.no_grad():
            old = Categorical(logits=policy(seen[:-1]))
            values = critic(seen)[..., 0]
        gains = advantages(values, rewards, ended)
        returns = gains + values[:-1]
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        for _ in range(UPDATES):
            new = Categorical(logits=policy(seen[:-1]))
            ratio = (new.log_prob(actions) - old.log_prob(actions)).exp()
            loss = -(ratio * gains).mean() + 0.5 * (critic(seen[:-1])[..., 0] - returns).pow(2).mean() / 100
            if regularizer is not None:
                loss = loss + regularizer(old, new)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            new = Categorical(logits=policy(seen[:-1]))
            moved.append(kl_per_dimension(old, new, batch_dims=2).item())
            if regularizer is not None:
                regularizer.train()  # in evaluation, calls are not noted: the whole update counts, not the way there
                regularizer(old, new)
                regularizer.step()
                regularizer.eval()
                coefficients.append(regularizer.coefficient.item())
        ends.append(int(ended.sum()))
    envs.close()
    return {"ends": ends, "kl": moved, "coefficient": coefficients}


def draw(plt: Any, results: dict[str, dict[str, Any]]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), layout="constrained")
    for i, (name, row) in enumerate(results.items()):
        for seed, run in enumerate(row["runs"]):
            label = name if seed == 0 else None
            steps = [POLES * STEPS / max(ends, 1) for ends in run["ends"]]
            left.plot(steps, color=f"C{i}", linewidth=1, alpha=0.6, label=label)
            right.plot(run["kl"], color=f"C{i}", linewidth=1, alpha=0.6, label=label)
    right.axhline(TARGET, color="0.5", linewidth=1, linestyle="--")
    left.set(xlabel="iteration", ylabel="steps for each end of an episode", yscale="log")
    right.set(xlabel="iteration", ylabel="KL(old‖new) of an update, nats", yscale="log")
    left.legend(fontsize="small")
    return figure


def main() -> None:
    options = arguments(__doc__ or "")
    iterations, seeds = (4, 1) if options.quick else (60, 3)
    results = {}
    for name in (UNCONSTRAINED, CONSTRAINED):
        runs = []
        for seed in range(seeds):
            coefficient = AdaptiveKLController(1.0, target=TARGET, horizon=1)
            constraint = KLRegularizer(coefficient=coefficient, batch_dims=2) if name == CONSTRAINED else None
            run = train(constraint, iterations, seed)
            half = iterations // 2
            run["late_length"] = POLES * STEPS * (iterations - half) / max(sum(run["ends"][half:]), 1)
            run["late_kl"] = statistics.fmean(run["kl"][half:])
            run["largest_kl"] = max(run["kl"])
            runs.append(run)
            told = {key: round(run[key], 4) for key in ("late_length", "late_kl", "largest_kl")}
            print(f"{name}, seed {seed}: {told}", flush=True)
        results[name] = {"runs": runs}
    content = {"iterations": iterations, "seeds": seeds, "target": TARGET, "ways": results}
    write(options.out, "policy_cartpole", content, draw=lambda plt: draw(plt, results))


if __name__ == "__main__":
    main()
