"""End to end on a tiny SD1.x single-file checkpoint: text -> CLIP -> UNet + Euler + CFG -> VAE -> image."""
import numpy as np
import torch

import clip_text
import common as C
import kdiff as K
import unet as U
import vae as V
from clip_bpe import ClipBpe

FAMILY = "pipeline"
FILE = "../sd1_checkpoint/model.safetensors"
SCALE = 0.18215


def configs(ctx):
    hidden = 64
    clip = dict(vocab=49408, hidden=hidden, inter=4 * hidden, layers=2, act="quick_gelu", proj=hidden,
                bos=49406, eos=49407, pad=49407, heads=hidden // 64, head_dim=64, n_positions=77, layout="hf",
                prefix="cond_stage_model.transformer.", file=FILE, ids="input_ids", out_prefix="", has_proj=False)
    un = U.unet_config("sd1", [64, 64, 64, 64], [1, 1, 1, 0], hidden, layers=2)
    va = V.vae_config([32, 64, 64, 64], 4, layers=2)
    return clip, un, va


def checkpoint(ctx, seed):
    clip, un, va = configs(ctx)
    sd = C.prefixed(clip_text.to_hf(clip_text.random_model(clip, seed), False), clip["prefix"])
    sd.update(U.to_file(U.random_unet(un, seed)))
    sd.update(V.to_file(V.random_vae(V.AutoencoderKL, va, seed), "first_stage_model."))
    sd = C.cast(sd, "f16")
    sd[clip["prefix"] + "text_model.embeddings.position_ids"] = torch.arange(77)[None]
    # buffers that real files carry and a loader has to skip
    sd["alphas_cumprod"] = torch.tensor(K.ALPHAS_CUMPROD, dtype=torch.float32)
    sd["betas"] = torch.tensor(K.BETAS, dtype=torch.float32)
    sd["model_ema.decay"] = torch.tensor(0.9999)
    sd["model_ema.num_updates"] = torch.tensor(1000, dtype=torch.int32)
    return sd


class Models:
    def __init__(self, params, sd):
        self.clip_cfg = params["clip"]
        self.clip = clip_text.load(params["clip"], sd)
        self.unet = U.load(params["unet"], sd)
        self.vae = V.load(params["vae"], sd, "first_stage_model.")

    def to(self, dtype):
        for m in (self.clip, self.unet, self.vae):
            m.to(dtype)
        return self


def text_states(M, ids, skip):
    parts = []
    for chunk in ids.long().chunk(ids.shape[1] // 77, 1):
        o = clip_text.encode(M.clip, M.clip_cfg, chunk)
        parts.append(o["penultimate_ln" if skip == 2 else "last_hidden"])
    return torch.cat(parts, 1)


def run(M, p, io, dtype=torch.float32):
    g = {k: v.to(dtype) for k, v in io.items() if v.is_floating_point()}
    cond = text_states(M, io["input_ids"], p["clip_skip"])
    uncond = text_states(M, io["negative_ids"], p["clip_skip"])
    out = {"cond": cond, "uncond": uncond}
    sig = [float(s) for s in io["sigmas"].double()]
    start = torch.zeros_like(g["noise"])
    if "init_image" in io:
        start = M.vae.encode(g["init_image"]).latent_dist.mean * SCALE
        out["init_latent"] = start
    x = start + g["noise"] * sig[0]

    def model(x, s):
        t = torch.full((len(x),), float(K.sigma_to_t(s)), dtype=torch.float32)
        xin = x / (s * s + 1) ** 0.5
        e = M.unet(torch.cat([xin, xin]), torch.cat([t, t]),
                   encoder_hidden_states=torch.cat([cond.expand(len(x), -1, -1), uncond.expand(len(x), -1, -1)]),
                   return_dict=False)[0].to(dtype)
        c, u = e.chunk(2)
        if "first_eps_cond" not in out:
            out["first_eps_cond"], out["first_eps_uncond"] = c, u
        den = K.eps_to_denoised(x, K.cfg(c, u, p["cfg_scale"]), s)
        if "mask" in io:
            den = den * g["mask"] + start * (1 - g["mask"])
        return den

    noise = g.get("step_noise")
    steps = list(getattr(K, p["sampler"])(model, x, sig, noise))
    out["latents"] = torch.stack(steps)
    out["final_latent"] = steps[-1]
    dec = M.vae.decode(steps[-1] / SCALE).sample
    out["decoded"] = dec
    out["image_01"] = (dec * 0.5 + 0.5).clamp(0, 1)
    return out


def rerun(meta, weights, io):
    return run(Models(meta["params"], weights[meta["weights"][0]]), meta["params"], io)


def noise_for(seed, *shape, offset=0):
    return torch.from_numpy(K.philox_randn(seed, int(np.prod(shape)), offset)).reshape(shape)


def emit(ctx, sd, case, M, prompt, negative, hw, sampler, sigmas, steps, cfg, seed, note=(), skip=1, extra=None,
         chunks=1, **more):
    bpe = ClipBpe()

    def ids(text):
        body = bpe.encode(text)
        rows = [bpe.BOS] and [[bpe.BOS, *body[i * 75:(i + 1) * 75], bpe.EOS] for i in range(chunks)]
        return torch.tensor([[t for r in rows for t in r + [bpe.EOS] * (77 - len(r))]], dtype=torch.int32)

    clip, un, va = configs(ctx)
    io = {"input_ids": ids(prompt), "negative_ids": ids(negative), "noise": noise_for(seed, 1, 4, *hw),
          "sigmas": torch.tensor(np.asarray(sigmas), dtype=torch.float32), **(extra or {})}
    p = {"clip": clip, "unet": un, "vae": va, "prompt": prompt, "negative_prompt": negative, "sampler": sampler,
         "steps": steps, "cfg_scale": cfg, "clip_skip": skip, "width": hw[1] * 8, "height": hw[0] * 8,
         "noise_rng": "philox (CUDA-style)", "seed": seed, **more}
    out = run(M, p, io)
    hi = run(M.to(torch.float64), p, io, torch.float64)
    M.to(torch.float32)
    doc = {"cond": "text states of the prompt", "uncond": "text states of the negative prompt",
           "init_latent": "posterior mean of init_image times 0.18215", "first_eps_cond": "UNet output of the first call",
           "first_eps_uncond": "the same for the negative prompt", "latents": "x after every step [steps,1,4,h,w]",
           "final_latent": "x after the last step", "decoded": "VAE output of final_latent / 0.18215",
           "image_01": "clamp(decoded/2 + 0.5)"}
    meta = {"run": "pipeline_sd1", "weights": [clip["file"]], "weight_dtype": "f16", "params": p,
            "inputs": {k: {"input_ids": "CLIP ids", "negative_ids": "CLIP ids", "noise": "start noise, unit variance",
                           "sigmas": "the schedule actually run", "step_noise": "noise of each ancestral step",
                           "init_image": "in [-1,1]", "mask": "latent mask, 1 = repaint"}[k] for k in io},
            "outputs": {k: doc[k] for k in out},
            "f32_vs_f64_max_abs": {k: float((out[k].double() - hi[k].double()).abs().max()) for k in out},
            "notes": ["k-diffusion form: x0 = init_latent + noise * sigmas[0] (init_latent is 0 for txt2img); network input "
                      "x / sqrt(sigma^2 + 1); timestep = sigma_to_t(sigma), not rounded; denoised = x - sigma * eps",
                      "eps = uncond + cfg_scale * (cond - uncond)",
                      "later latents depend on earlier ones: compare latents[0] first when hunting a difference", *note]}
    meta["tolerance"] = {"rel_rms": 1e-3, "max_abs_over_rms": 1e-2, "note": "f32 engine, several chained calls; with f16 activations allow 3e-2"}
    C.write_case(ctx, FAMILY, case, {clip["file"]: sd}, {**io, **out}, meta)


def generate(ctx):
    seed = ctx.seed + 1000
    clip, un, va = configs(ctx)
    sd = checkpoint(ctx, seed)
    d = ctx.out / FAMILY / "sd1_checkpoint"
    d.mkdir(parents=True, exist_ok=True)
    C.save_file(sd, str(d / "model.safetensors"), metadata={"format": "pt"})
    M = Models({"clip": clip, "unet": un, "vae": va}, sd)
    n = 5
    hw = (8, 16)
    words = ("a small red house on a hill, oil painting", "blurry, low quality")
    emit(ctx, sd, "sd1_txt2img", M, *words, hw, "euler", K.discrete(n), n, 3.0, 42)
    emit(ctx, sd, "sd1_euler_a_karras", M, *words, hw, "euler_a", K.karras(n), n, 2.0, 43,
         extra={"step_noise": torch.stack([noise_for(43, 1, 4, *hw, offset=i + 1) for i in range(n)])},
         schedule="karras", note=["step_noise is what the same generator gives in its next calls (offset 1, 2, ...)"])
    emit(ctx, sd, "sd1_clip_skip2_dpmpp_2m", M, *words, (16, 8), "dpmpp_2m", K.karras(n), n, 3.0, 11, skip=2,
         schedule="karras")
    long = " ".join(["a very long prompt about mountains, rivers and castles"] * 10)
    emit(ctx, sd, "sd1_long_prompt", M, long, "", (8, 8), "euler", K.discrete(3), 3, 3.0, 5, chunks=2,
         note=["two chunks of 75 tokens, each wrapped in begin/end, states concatenated; the negative prompt is "
               "padded to the same number of chunks"])
    steps, strength = (8, 0.6)
    t_enc = int(steps * strength)
    sig = K.discrete(steps)[steps - t_enc - 1:]
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, hw[0] * 8), torch.linspace(-1, 1, hw[1] * 8), indexing="ij")
    img = torch.stack([torch.sin(4 * xx + yy), torch.cos(5 * yy), xx * yy])[None].clamp(-1, 1)
    emit(ctx, sd, "sd1_img2img", M, *words, hw, "euler", sig, steps, 3.0, 77, extra={"init_image": img},
         strength=strength,
         note=[f"t_enc = int(steps * strength) = {t_enc}; the last t_enc + 1 intervals of the {steps}-step schedule run "
               "(A1111 and stable-diffusion.cpp convention)", "init_latent is the posterior mean, not a sample"])
    mask = torch.zeros(1, 1, *hw)
    mask[..., hw[0] // 4: hw[0] * 3 // 4, hw[1] // 2:] = 1.0
    mask[..., hw[0] // 4, :] = 0.5
    emit(ctx, sd, "sd1_inpaint_mask", M, *words, hw, "euler", sig, steps, 3.0, 78,
         extra={"init_image": img, "mask": mask}, strength=strength,
         note=["plain model with a latent mask: denoised = denoised * mask + init_latent * (1 - mask) after guidance, "
               "at every call; no other blending (soft mask values are used as they are)"])
    # component cases that read the same checkpoint
    W = "../../pipeline/sd1_checkpoint/model.safetensors"
    U.emit(ctx, "sd1_four_levels", un, seed, 1, (16, 24), 77,
           [601.0], dtype="f16", file=W, weights=sd,
           note=["SD1.x layout: num_heads 8, conv proj_in/out; UNet inside the single-file checkpoint", U.SD1_NOTE])
    V.emit_kl(ctx, "sd1_vae", "sd1", va, seed, 1, (4, 5), "first_stage_model.",
              dtype="f16", file=W, weights=sd, note=["x8 layout of SD1.x with quant_conv and post_quant_conv"])
    V.emit_kl(ctx, "sd1_vae_large_decode", "sd1", va, seed, 1, None, "first_stage_model.", dtype="f16", encode=False,
              latent_hw=(48, 64), live=False, file=W, weights=sd,
              note=["untiled reference for tiled decoding (tiling changes group-norm statistics and mid attention, so a "
                    "tiled decode is only near this one)"])


if __name__ == "__main__":
    generate(C.context_from_args())
