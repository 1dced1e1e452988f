"""Settings of the private linear model, chosen on held-out training records; test data is never read.

    python bench/choose_private.py --pack folder        training files, compressed, for another machine
    python bench/choose_private.py --calibrate          noise multipliers of the grid, by cepam.privacy
    python bench/choose_private.py --folder folder      the search, on a GPU where there is one
    python bench/choose_private.py --slices 15 30 60 …  the same two without secret draws: preset dp-ftrl
    python bench/choose_private.py --report             what was found, and what the rule takes of it

The search needs PyTorch and NumPy only; without --folder it reads the features that training keeps, by cepam. It adds
central Gaussian noise of exactly the covariance that the noise of the clients adds up to: a stand-in that is good
enough to choose by, and no run of the engine. A record is drawn with the chance of the final run, batch / 60,000, so
the noise multiplier is the final run's; with records held out the batch is a little smaller, and accuracies a little
low. With --slices records are used in a fixed order, a slice a round, and the noise of a round takes away the decay
times the last one's, as the streams of preset dp-ftrl add up. Looking at held-out records is not in epsilon: the choice
assumes that settings were found on other data of the kind.

Every rate of a batch and a number of rounds sees the same draws and the same noise. Rows are added to those of
bench/results/choose_private.json (with --slices: choose_dp_ftrl.json).
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stamp import save

HERE = Path(__file__).parent
NOISE = HERE / "results" / "choose_private_noise.json"
RESULTS = HERE / "results" / "choose_private.json"
DP_FTRL = HERE / "results" / "choose_dp_ftrl.json"
RECORDS, DELTA = 60_000, 1e-5
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def read(folder: Path, name: str) -> np.ndarray:
    """The array of an idx file, plain or compressed."""
    path = next(p for p in (folder / name, folder / f"{name}.gz") if p.is_file())
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shape = np.frombuffer(raw, ">u4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def pack(names: list[str], folder: Path) -> None:
    """Write the training files of these data sets to the folder, compressed."""
    from cepam.fl.data.fetch import fetch

    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for path in fetch(name)[:2]:
            (folder / name / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 6))


def calibrate(chosen: argparse.Namespace) -> None:
    """Write the noise multipliers of the grid to the results' folder."""
    from cepam import L2, Gaussian
    from cepam.privacy import Client, Mechanism, Sampling
    from cepam.privacy import calibrate as needed

    found = json.loads(NOISE.read_text()) if NOISE.exists() else {}
    for epsilon, batch, rounds in itertools.product(chosen.epsilon, chosen.batches, chosen.rounds):
        if (key := f"{epsilon:g} {batch} {rounds}") not in found:
            client = Client(Gaussian(1.0), RECORDS, 1.0, float(batch))
            mechanism = Mechanism(
                (client,), L2(1.0), Sampling("poisson", float(batch)), rounds, 0, "add-remove", "example"
            )
            found[key] = float(needed(mechanism, epsilon, DELTA).clients[0].law.scale) * batch
            print(key, f"{found[key]:.4f}", flush=True)
            NOISE.write_text(json.dumps(found, indent=1) + "\n")


def correlate(chosen: argparse.Namespace) -> None:
    """Write the best decay and the noise multiplier for each number of slices to the results' folder."""
    from cepam import L2, Gaussian, privacy

    found = json.loads(NOISE.read_text())
    for epsilon, slices, rounds in itertools.product(chosen.epsilon, chosen.slices, chosen.rounds):
        if (key := f"{epsilon:g} slices {slices} {rounds}") not in found:
            decay = privacy.best_decay(rounds, slices, chosen.momentum, [falling(at, rounds) for at in range(rounds)])
            client = privacy.Client(Gaussian(1.0), RECORDS, 1.0, 1.0)  # a share of the bound: the multiplier itself
            mechanism = privacy.MatrixMechanism(
                (client,), L2(1.0), rounds=rounds, adjacency="add-remove", clipped="example",
                link=privacy.CorrelatedNoise(decay, slices),
            )  # fmt: skip
            found[key] = [float(privacy.calibrate(mechanism, epsilon, DELTA).clients[0].law.scale), decay]
            print(key, found[key], flush=True)
            NOISE.write_text(json.dumps(found, indent=1) + "\n")


def falling(at: int, rounds: int) -> float:
    """The rate of a round over the full one: held for half of the run, then down to zero."""
    return min(1.0, 2.0 * (1.0 - at / rounds))


def kept_features(name: str) -> Tensor:
    """The scattering features that training computes once and keeps."""
    from cepam.fl.data.dataset import load
    from cepam.fl.models.features import scattering

    data = load(name)
    made = scattering(data.shape).of(data)
    return torch.from_numpy(np.asarray(made.train_inputs))


def features_of(images: np.ndarray, groups: int, device: str) -> Tensor:
    """The scattering features of all images, in half precision as the engine keeps them."""
    place = HERE.parent / "src" / "cepam" / "fl" / "models" / "scattering.py"
    spec = importlib.util.spec_from_file_location("scattering", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scattering = module.Scattering((1, *images.shape[1:]), groups).to(device)
    out = torch.empty((len(images), scattering.size), dtype=torch.float16, device=device)
    per = 16 if device == "cpu" else 1000
    for at in range(0, len(images), per):
        few = torch.from_numpy(images[at : at + per].copy()).to(device).float() / 255.0
        out[at : at + per] = scattering(few[:, None])
    return out


def step(x: Tensor, labels: Tensor, weights: Tensor, clip: float) -> Tensor:
    """The sums of clipped gradients (rates, classes, features and bias) of one batch, for the weights of every rate."""
    logits = torch.einsum("nf,rcf->nrc", x, weights[:, :, :-1]) + weights[:, :, -1]
    residual = logits.softmax(2) - torch.nn.functional.one_hot(labels, logits.shape[2])[:, None]
    norms = residual.norm(dim=2) * (x.square().sum(1) + 1.0).sqrt()[:, None]
    scaled = residual * (clip / norms).clamp(max=1.0)[:, :, None]
    return torch.cat((torch.einsum("nrc,nf->rcf", scaled, x), scaled.sum(0)[:, :, None]), 2)


def trained(
    x: Tensor, labels: Tensor, kept: Tensor, batch: int, rounds: int, noise: tuple[float, float], seed: int,
    chosen: argparse.Namespace,
) -> Tensor:  # fmt: skip
    """The last weights of every rate: momentum, the rate held for half of the run and then falling to zero."""
    draw = torch.Generator(device=x.device).manual_seed(1_000_003 * seed + 31 * batch + rounds)
    multiplier, decay = noise
    slices, last = round(RECORDS / batch), torch.zeros((10, x.shape[1] + 1), device=x.device)
    weights = torch.zeros((len(chosen.rates), 10, x.shape[1] + 1), device=x.device)
    velocity = torch.zeros_like(weights)
    scale = torch.tensor(chosen.rates, device=x.device)[:, None, None]
    chance = batch / RECORDS
    for at in range(rounds):
        if chosen.slices:
            picked = kept[at % slices :: slices]
        else:
            picked = kept[torch.rand(len(kept), generator=draw, device=x.device) < chance]
        total = step(x[picked].float(), labels[picked], weights, chosen.clip)
        fresh = torch.randn(total.shape[1:], generator=draw, device=x.device)
        total += multiplier * chosen.clip * (fresh - decay * last)
        last = fresh
        velocity = chosen.momentum * velocity + total / (chance * len(kept))
        weights = weights - scale * falling(at, rounds) * velocity
    return weights


def accuracies(x: Tensor, labels: Tensor, held: Tensor, weights: Tensor) -> list[float]:
    """The share of right answers on the held-out records, for the weights of every rate."""
    right = torch.zeros(len(weights), device=x.device)
    for part in held.split(2000):
        logits = torch.einsum("nf,rcf->nrc", x[part].float(), weights[:, :, :-1]) + weights[:, :, -1]
        right += (logits.argmax(2) == labels[part, None]).sum(0)
    return [float(value) / len(held) for value in right]


def search(name: str, chosen: argparse.Namespace, noise: dict[str, float]) -> list[dict[str, Any]]:
    """One row for every setting of the grid: held-out accuracy, its mean and standard error over seeds."""
    if chosen.folder is None:
        from cepam.fl.data.dataset import load

        x, answers = kept_features(name), load(name).train_labels
    else:
        images, answers = (read(Path(chosen.folder) / name, file) for file in FILES)
        x = features_of(images, chosen.groups, chosen.device)
    labels = torch.from_numpy(answers.astype(np.int64)).to(chosen.device)
    rows = []
    sizes = chosen.slices or chosen.batches
    for epsilon, size, rounds in itertools.product(chosen.epsilon, sizes, chosen.rounds):
        begun, batch = time.perf_counter(), RECORDS // size if chosen.slices else size
        known = noise[f"{epsilon:g} {'slices ' if chosen.slices else ''}{size} {rounds}"]
        multiplier, decay = known if chosen.slices else (known, 0.0)
        found = []
        for seed in range(chosen.seeds):
            order = np.random.Generator(np.random.PCG64([seed, 0x43484F])).permutation(len(labels))
            held, kept = (torch.from_numpy(part).to(chosen.device) for part in np.split(order, [chosen.held_out]))
            last = trained(x, labels, kept, batch, rounds, (multiplier, decay), seed, chosen)
            found.append(accuracies(x, labels, held, last))
        for rate, column in zip(chosen.rates, zip(*found)):
            error = float(np.std(column, ddof=1) / math.sqrt(len(column))) if len(column) > 1 else None
            rows.append({"data": name, "epsilon": epsilon, "batch": batch, "rounds": rounds, "rate": rate,
                         "noise_multiplier": multiplier, "decay": decay, "groups": chosen.groups,
                         "accuracy": float(np.mean(column)), "standard_error": error,
                         "seeds": list(column)})  # fmt: skip
        best = max(rows[-len(chosen.rates) :], key=lambda row: row["accuracy"])
        print(f"{name} eps {epsilon:g} batch {batch} rounds {rounds} noise {multiplier:.3f} rate {best['rate']:g}: "
              f"{100 * best['accuracy']:.2f} % ({time.perf_counter() - begun:.0f} s)", flush=True)  # fmt: skip
    return rows


def setting_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a row from the others."""
    return tuple(row[name] for name in ("data", "epsilon", "batch", "rounds", "rate", "groups"))


def report(rows: list[dict[str, Any]]) -> None:
    """Print the best settings, and what is chosen among those within one standard error of the best.

    Fewest rounds, so fewest bytes both ways; of these the largest batch, whose messages are smallest.
    """
    for name, epsilon in sorted({(row["data"], row["epsilon"]) for row in rows}):
        mine = sorted((r for r in rows if (r["data"], r["epsilon"]) == (name, epsilon)), key=lambda r: -r["accuracy"])
        least = mine[0]["accuracy"] - (mine[0]["standard_error"] or 0.0)
        near = [row for row in mine if row["accuracy"] >= least]
        taken = min(near, key=lambda row: (row["rounds"], -row["batch"], -row["accuracy"]))
        for word, row in [("best", r) for r in mine[:5]] + [("chosen", taken)]:
            print(f"{name} eps {epsilon:g} {word:20} batch {row['batch']} rounds {row['rounds']} rate {row['rate']:g} "
                  f"noise {row['noise_multiplier']:.3f}: {100 * row['accuracy']:.2f} %")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.99, 0.5])
    parser.add_argument("--batches", nargs="+", type=int, default=[1024, 2048, 4096, 8192])
    parser.add_argument("--slices", nargs="+", type=int, help="fixed slices in turn instead of secret draws")
    parser.add_argument("--rounds", nargs="+", type=int, default=[150, 300, 600, 1200])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
    parser.add_argument("--clip", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--groups", type=int, default=27)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held-out", type=int, default=10_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", help="folder of --pack; default: what training keeps (CPU)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    if chosen.pack:
        return pack(chosen.data, chosen.pack)
    if chosen.calibrate:
        return correlate(chosen) if chosen.slices else calibrate(chosen)
    out = chosen.out or (DP_FTRL if chosen.slices else RESULTS)
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    if chosen.report:
        return report(rows)
    noise = json.loads(NOISE.read_text())
    for name in chosen.data:
        found = search(name, chosen, noise)
        anew = {setting_of(row) for row in found}
        rows = [row for row in rows if setting_of(row) not in anew] + found
        save(out, {"device": chosen.device, "rows": rows})
    return report(rows)


if __name__ == "__main__":
    main()
