"""A variational autoencoder of handwritten digits, with and without free bits, and the KL of each latent dimension.

scikit-learn's digits are 1797 images of 8 by 8 pixels of 0 to 16; 297 are for testing. The decoder gives each pixel a
Binomial(16, p), so the ELBO is the evidence lower bound of the original images. The two models differ only in the free
bits: they start with the same weights and see the same batches. Run it with `python examples/vae_digits.py`; it takes
about half a minute.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Binomial, Normal
from written import arguments, write

from kullback.nn import KLRegularizer, active_units, kl_per_dimension

LATENT = 32
FREE = 0.25
BATCH = 100
HELD_OUT = 297
SHOWN = 8


def ways() -> dict[str, KLRegularizer]:
    return {"plain": KLRegularizer(), "free bits": KLRegularizer(free_nats=FREE)}


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, 64))

    def posterior(self, images: Tensor) -> Normal:
        loc, log_scale = self.encoder(images / 16).chunk(2, -1)
        return Normal(loc, log_scale.exp())

    def reconstruction_loss(self, images: Tensor, z: Tensor) -> Tensor:
        """-log p(images | z) of each image, in nats."""
        return -Binomial(16, logits=self.decoder(z)).log_prob(images).sum(-1)


def train(regularizer: KLRegularizer, images: Tensor, steps: int) -> VAE:
    torch.manual_seed(0)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = images[torch.randint(len(images), (BATCH,), generator=generator)]
        posterior = model.posterior(batch)
        loss = model.reconstruction_loss(batch, posterior.rsample()).mean() + regularizer(posterior)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        regularizer.step()
    return model


@torch.no_grad()
def measure(model: VAE, images: Tensor) -> dict[str, Any]:
    """The two parts of the ELBO and the KL of each dimension on images that the model has not seen."""
    torch.manual_seed(1)
    posterior = model.posterior(images)
    losses = torch.stack([model.reconstruction_loss(images, posterior.rsample()) for _ in range(20)]).mean(0)
    kl = kl_per_dimension(posterior)
    return {
        "elbo": -(losses.mean() + kl.sum()).item(),
        "reconstruction": losses.mean().item(),
        "kl": kl.sum().item(),
        "kl_per_dimension": kl.sort(descending=True).values.tolist(),
        "active_units": int(active_units(posterior).sum()),
    }


@torch.no_grad()
def reconstruct(model: VAE, images: Tensor) -> Tensor:
    """The mean image that the decoder gives at the mean of the posterior."""
    return 16 * model.decoder(model.posterior(images).mean).sigmoid()


def draw(plt: Any, results: dict[str, Any], rows: dict[str, Tensor]) -> Any:
    figure = plt.figure(figsize=(7.2, 5.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.25, 1])
    for (i, (name, images)), axes in zip(
        enumerate(rows.items()), top.subplots(len(rows), SHOWN), strict=True
    ):
        for image, ax in zip(images, axes, strict=True):
            ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
            ax.set(xticks=[], yticks=[])
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center", color=f"C{i - 1}" if i else "black")
    ax = bottom.subplots()
    width = 0.8 / len(results)
    for i, (name, row) in enumerate(results.items()):
        places = [j + (i - (len(results) - 1) / 2) * width for j in range(LATENT)]
        ax.bar(places, row["kl_per_dimension"], width, label=f"{name}: {row['kl']:.1f} nats in all")
    ax.axhline(FREE, color="0.5", linewidth=1, linestyle="--")
    ax.set(xlabel="latent dimension, by its KL", ylabel="KL, nats", xticks=range(0, LATENT, 4))
    ax.legend()
    return figure


def main() -> None:
    options = arguments(__doc__ or "")
    steps = 200 if options.quick else 4000
    digits = torch.from_numpy(load_digits().data).float()
    digits = digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))]
    held_out, images = digits[:HELD_OUT], digits[HELD_OUT:]
    results, rows = {}, {"image": held_out[:SHOWN]}
    for name, regularizer in ways().items():
        model = train(regularizer, images, steps)
        results[name] = measure(model, held_out)
        rows[name] = reconstruct(model, held_out[:SHOWN])
        print(
            f"{name:10} ELBO {results[name]['elbo']:.2f}  active {results[name]['active_units']}", flush=True
        )
    content = {"steps": steps, "latent": LATENT, "free_nats": FREE, "held_out": HELD_OUT, "ways": results}
    write(options.out, "vae_digits", content, draw=lambda plt: draw(plt, results, rows))


if __name__ == "__main__":
    main()
