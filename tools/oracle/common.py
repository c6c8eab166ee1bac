"""Shared helpers: deterministic random weights, case writing, liveness check.

Every family module offers
    generate(ctx)                      write all its cases
    rerun(meta, weights, io) -> dict   recompute the outputs from the saved files only
`weights` maps file name -> {tensor name: tensor}, exactly as stored on disk.
"""
import argparse
import json
import os
import pathlib
import zlib

import diffusers
import torch
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
torch.set_grad_enabled(False)
diffusers.utils.logging.set_verbosity_error()

QUICK = bool(os.environ.get("ORACLE_QUICK"))  # leave out the one-by-one check that every tensor matters

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Ctx:
    def __init__(self, out, heldback):
        self.out = pathlib.Path(out)
        self.heldback = heldback
        self.secret = {}
        self.seed = 1234
        if heldback:  # seed and prompts of the held-back set are kept beside its cases, not here
            self.secret = json.loads((self.out.parent / "heldback.json").read_text())
            self.seed = self.secret["seed"]

    def pick(self, normal, held):
        return held if self.heldback else normal


def context_from_args():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"))
    p.add_argument("--heldback", action="store_true", help="other seeds and sizes; reads heldback.json beside the folder --out")
    a = p.parse_args()
    return Ctx(a.out, a.heldback)


def rng(seed, name):
    return torch.Generator().manual_seed((zlib.crc32(name.encode()) ^ (seed * 2654435761)) & 0x7FFFFFFF)


def randn(seed, name, *shape, scale=1.0):
    return torch.randn(*shape, generator=rng(seed, name)) * scale


def randint(seed, name, lo, hi, *shape):
    return torch.randint(lo, hi, shape, generator=rng(seed, name))


def randomise(module, seed, gain=1.0, bias=0.2, norm=0.25, emb=1.0, other=0.5, overrides=()):
    """Fill every parameter and float buffer that is part of the state dict.

    Matrices and kernels: normal, std = gain / sqrt(fan_in).  Norm scales: 1 + norm * normal.
    `overrides`: (substring of the name, factor) pairs that scale what is drawn.
    """
    kinds = {}
    for mname, m in module.named_modules():
        for pname, _ in m.named_parameters(recurse=False):
            kinds[f"{mname}.{pname}" if mname else pname] = m
    for name, p in module.named_parameters():
        owner = kinds[name]
        cls = type(owner).__name__
        z = torch.randn(p.shape, generator=rng(seed, name))
        if "Norm" in cls:
            v = 1 + norm * z if name.endswith("weight") else bias * z
        elif "Embedding" in cls and p.ndim == 2 and name.endswith("weight") and isinstance(owner, torch.nn.Embedding):
            v = emb * z
        elif name.endswith("bias"):
            v = bias * z
        elif p.ndim >= 2:
            v = gain * z / (p[0].numel() ** 0.5)
        else:
            v = other * z
        for sub, f in overrides:
            if sub in name:
                v = v * f
        p.data.copy_(v)
    return module


def cast(sd, dtype):
    d = DTYPES[dtype]
    return {k: (v.to(d) if v.is_floating_point() else v).contiguous().clone() for k, v in sd.items()}


def floats(sd):
    """Weights as the reference model sees them: f16/bf16 tensors widened to f32."""
    return {k: (v.float() if v.is_floating_point() else v) for k, v in sd.items()}


def strip(sd, prefix):
    return {k[len(prefix):]: v for k, v in sd.items() if k.startswith(prefix)}


def prefixed(sd, prefix):
    return {prefix + k: v for k, v in sd.items()}


def load_strict(module, sd, ignore=()):
    missing, unexpected = module.load_state_dict(sd, strict=False)
    missing = [k for k in missing if not any(i in k for i in ignore)]
    unexpected = [k for k in unexpected if not any(i in k for i in ignore)]
    assert not missing and not unexpected, (missing[:8], unexpected[:8])
    return module.eval()


def rel_rms(a, b):
    a, b = a.double(), b.double()
    return float(((a - b) ** 2).mean().sqrt() / (b ** 2).mean().sqrt().clamp_min(1e-30))


def inert_tensors(module, forward, seed=7, thresh=1e-5, limit=None):
    """Perturb each parameter in turn; return the names whose change no output notices."""
    if QUICK:
        return ["not checked"]
    base = forward()
    dead = []
    for i, (name, p) in enumerate(module.named_parameters()):
        if limit and i % limit:
            continue
        keep = p.data.clone()
        s = keep.std() if keep.numel() > 1 else keep.abs().mean()
        p.data.add_(torch.randn(p.shape, generator=rng(seed, name)).to(p.dtype) * 0.3 * s)
        new = forward()
        p.data.copy_(keep)
        if max(rel_rms(new[k], base[k]) for k in base) < thresh:
            dead.append(name)
    return dead


def f64_gap(module, forward):
    """How far f32 PyTorch is from f64 on the same weights: the noise floor of the case."""
    base = forward()
    module.double()
    hi = forward(torch.float64)
    module.float()
    return {k: float((base[k].double() - hi[k].double()).abs().max()) for k in base}


TOLERANCE = {
    "f32": {"rel_rms": 1e-4, "max_abs_over_rms": 2e-3,
            "note": "for an engine computing in f32; allow rel_rms 5e-3 where kernels round activations to f16"},
}


def write_case(ctx, family, case, weights, io, meta):
    d = ctx.out / family / case
    d.mkdir(parents=True, exist_ok=True)
    for fname, sd in weights.items():
        if "/" in fname:  # weights shared with another case
            continue
        save_file({k: v.contiguous().clone() for k, v in sd.items()}, str(d / fname), metadata={"format": "pt"})
    save_file({k: v.contiguous().clone() for k, v in io.items()}, str(d / "io.safetensors"))
    full = {"family": family, "case": case}
    full.update(meta)
    full.setdefault("weights", sorted(weights))
    full.setdefault("io", "io.safetensors")
    full.setdefault("tolerance", TOLERANCE["f32"])
    stats = {}
    for k in full.get("outputs", {}):
        v = io[k].float()
        stats[k] = {"shape": list(v.shape), "rms": round(float((v ** 2).mean().sqrt()), 6),
                    "max_abs": round(float(v.abs().max()), 6)}
    full["output_stats"] = stats
    (d / "case.json").write_text(json.dumps(full, indent=1, ensure_ascii=False) + "\n")
    size = sum(f.stat().st_size for f in d.iterdir()) / 1e6
    print(f"{family}/{case}: {size:.2f} MB", {k: s["rms"] for k, s in stats.items()}, flush=True)


def read_case(d):
    meta = json.loads((d / "case.json").read_text())
    weights = {w: load_file(str((d / w).resolve())) for w in meta["weights"] if w.endswith(".safetensors")}
    return meta, weights, load_file(str(d / meta["io"]))
