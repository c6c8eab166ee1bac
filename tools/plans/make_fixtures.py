#!/usr/bin/env python3
"""Writes the cost fixtures under tests/golden/plans from lists of real checkpoints' tensors.

    tools/plans/make_fixtures.py SHAPES [OUT]

SHAPES is a folder with MODEL.json files: {"tensors": [[name, dtype, shape in torch order], ...]}. A fixture says what each block of an
architecture asks of a device (weights, workspace, largest contiguous piece, seconds) and what crosses block boundaries, so that plans at
true sizes can be tested before the architecture exists here; it is replaced by the real graphs when the model lands. Formulas:

weights      by the engine's rule for device types: vectors f32; matrices as stored, or Q8_0 (34 bytes per 32 values) where the fixture
             says so; kernels f16 stay, bf16 becomes f32. Each tensor is rounded up to the alignment. Token tables are gathered on the
             host and count nothing. A layer is cut where only the residual stream crosses: attention, (cross-attention,) MLP.
activations  f32: 4 bytes. N tokens, width H, MLP width F, C channels on h x w pixels.
state        residual stream 4NH per lane, from each block to the next; constants (context, rope tables, modulation) always.
workspace    attention 4NH x 5 (normed, q, k, v, result), largest piece 4NH;
             MLP gated 4N(H + 2F), plain or GEGLU-fused 4N(H + F'), F' the width of its first product; largest piece 4NF';
             residual convolution block 4hw(Cin + 2 Cout), largest piece 4hw max(Cin, Cout); upsampling 4C(2h)(2w).
seconds      2 x weights' values x N (products), 4NNH (attention), 2 x kernel values x hw (convolutions), divided by FLOPS.
"""
import json
import pathlib
import re
import sys

ALIGNMENT, CHUNK, GIB = 256, 1 << 30, 1 << 30
FLOPS, LINK, LATENCY = 20e12, 16e9, 10e-6
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "Q8_0": 34 / 32}


def up(size):
    return -(-int(size) // ALIGNMENT) * ALIGNMENT


class Weights:
    """A checkpoint's tensors; `q8` names those stored as Q8_0."""

    def __init__(self, shapes, model, q8=None, prefix=""):
        tensors = json.loads((shapes / f"{model}.json").read_text())["tensors"]
        self.tensors = [(n[len(prefix):], d, s) for n, d, s in tensors if n.startswith(prefix)]
        self.q8 = re.compile(q8) if q8 else None

    def device_bytes(self, name, dtype, shape):
        values = 1
        for n in shape:
            values *= n
        dims = [n for n in shape if n != 1]
        if len(dims) < 2:
            dtype = "F32"
        elif len(shape) >= 4 and len(dims) > 2 and dtype == "BF16":
            dtype = "F32"
        elif len(dims) == 2 and self.q8 and self.q8.search(name):
            dtype = "Q8_0"
        return up(values * SIZES[dtype])

    def take(self, pattern):
        """(bytes, values) of the tensors whose whole name matches; an error if there are none."""
        found = [t for t in self.tensors if re.fullmatch(pattern, t[0])]
        assert found, pattern
        total = 0
        for _, _, shape in found:
            n = 1
            for d in shape:
                n *= d
            total += n
        return sum(self.device_bytes(*t) for t in found), total

    def shape(self, name):
        return next(s for n, _, s in self.tensors if n == name)


def block(weights, workspace, contiguous, flops):
    return {"weights": up(weights), "workspace": up(workspace), "contiguous": up(contiguous), "compute_s": float(f"{flops / FLOPS:.4g}")}


def attention(w, pattern, tokens, width, lanes, keys=None):
    size, values = w.take(pattern)
    return block(size, 20 * tokens * width, 4 * tokens * width, lanes * (2 * values * tokens + 4 * tokens * (keys or tokens) * width))


def mlp(w, pattern, tokens, width, inner, pieces, lanes):
    size, values = w.take(pattern)
    return block(size, 4 * tokens * (width + pieces * inner), 4 * tokens * inner, lanes * 2 * values * tokens)


def plain(w, pattern, tokens, width, lanes):
    size, values = w.take(pattern)
    return block(size, 4 * tokens * width, 4 * tokens * width, lanes * 2 * values * tokens)


class Stage:
    def __init__(self, name, lanes, sweeps):
        self.name, self.lanes, self.sweeps = name, lanes, sweeps
        self.blocks, self.state = [], []

    def add(self, blocks, crossing):
        """Appends a block; `crossing` bytes go from it to the next."""
        for b in blocks:
            self.blocks.append(b)
            self.state.append((up(crossing), len(self.blocks) - 1, len(self.blocks)))

    def always(self, size):
        self.state.append((up(size), 0, -1))

    def span(self, size, first, last):
        self.state.append((up(size), first, last))

    def json(self):
        # What leaves the last block is an output, to be read after the sweep: it lives to the sweep's last tick, as `always` does.
        last = len(self.blocks) - 1
        state = [(s, f, min(t, last)) for s, f, t in self.state]
        return {"name": self.name, "lanes": self.lanes, "sweeps": self.sweeps, "blocks": runs(self.blocks), "state": chains(state)}


def runs(blocks):
    """Equal neighbours, or equal groups of up to three blocks, once with their number."""
    out, i = [], 0
    while i < len(blocks):
        best = (1, 1)
        for length in (1, 2, 3):
            n = 1
            while blocks[i + n * length:i + (n + 1) * length] == blocks[i:i + length]:
                n += 1
            if n > 1 and n * length > best[0] * best[1]:
                best = (n, length)
        out.append({"times": best[0], "blocks": blocks[i:i + best[1]]})
        i += best[0] * best[1]
    return out


def chains(state):
    """[bytes, first block, last block, times]: the same value from each of `times` blocks in a row to its next; last -1: always."""
    out = []
    for size, first, last in state:
        if out and last != -1 and out[-1][0] == size and out[-1][1] + out[-1][3] == first and last - first == out[-1][2] - out[-1][1] == 1:
            out[-1][3] += 1
        else:
            out.append([size, first, last, 1])
    return out


def text_encoder(w, layer, norm, layers, tokens, width, inner, pieces, attn, ff):
    s = Stage("encode", 1, 1)
    for i in range(layers):
        s.add([attention(w, layer.format(i) + attn, tokens, width, 1)], 4 * tokens * width)
        s.add([mlp(w, layer.format(i) + ff, tokens, width, inner, pieces, 1)], 4 * tokens * width)
    if norm:
        s.add([plain(w, norm, tokens, width, 1)], 4 * tokens * width)
    return s


def qwen3_4b(shapes, tokens):
    w = Weights(shapes, "qwen3-4b")
    s = text_encoder(w, r"model\.layers\.{}\.", None, 35, tokens, 2560, 9728, 2, r"(self_attn.*|input_layernorm.*)",
                     r"(mlp.*|post_attention_layernorm.*)")
    s.always(4 * tokens * 2 * 128)  # rope
    return s


def umt5_xxl(shapes, tokens, lanes):
    w = Weights(shapes, "umt5-xxl")
    s = Stage("encode", lanes, 1)
    for i in range(24):
        s.add([attention(w, rf"encoder\.block\.{i}\.layer\.0\..*", tokens, 4096, lanes)], 4 * tokens * 4096)
        s.add([mlp(w, rf"encoder\.block\.{i}\.layer\.1\..*", tokens, 4096, 10240, 2, lanes)], 4 * tokens * 4096)
    s.add([plain(w, r"encoder\.final_layer_norm\..*", tokens, 4096, lanes)], 4 * tokens * 4096)
    return s


def kl_decoder(shapes, model, width, height, lanes):
    """The autoencoder of SD, Flux and Z-Image: width x height are the picture's."""
    w = Weights(shapes, model, prefix="decoder.")
    s = Stage("decode", lanes, 1)
    hw = width * height // 64
    top = w.shape("conv_in.weight")[0]

    def conv(pattern, workspace, contiguous, pixels, out):
        size, values = w.take(pattern)
        s.add([block(size, workspace, contiguous, lanes * 2 * values * pixels)], out)

    def resnet(name, pixels):
        out, cin = w.shape(name + ".conv1.weight")[:2]
        conv(re.escape(name) + r"\..*", 4 * pixels * (cin + 2 * out), 4 * pixels * max(cin, out), pixels, 4 * pixels * out)

    conv(r"conv_in\..*", 0, 0, hw, 4 * hw * top)
    resnet("mid.block_1", hw)
    s.add([attention(w, r"mid\.attn_1\..*", hw, top, lanes)], 4 * hw * top)
    resnet("mid.block_2", hw)
    for level in (3, 2, 1, 0):
        for i in range(3):
            resnet(f"up.{level}.block.{i}", hw)
        if level:
            c = w.shape(f"up.{level}.upsample.conv.weight")[0]
            hw *= 4
            conv(rf"up\.{level}\.upsample\..*", 4 * hw * c, 4 * hw * c, hw, 4 * hw * c)
    c = w.shape("conv_out.weight")[1]
    conv(r"(norm_out|conv_out)\..*", 4 * hw * c, 4 * hw * c, hw, 4 * hw * 3)
    return s


def z_image(shapes, q8, pictures, width, height):
    # Time modulation and embedders stay as they are, as such files have it.
    w = Weights(shapes, "z-image-turbo", r"(attention\.(qkv|out)|feed_forward\.w[123])\.weight" if q8 else None)
    text, image, wide, inner = 256, width * height // 256, 3840, 10240
    tokens = text + image
    s = Stage("denoise", pictures, 8)

    def layers(prefix, count, n):
        for i in range(count):
            at = rf"{prefix}\.{i}\."
            s.add([attention(w, at + r"(attention.*|adaLN.*)", n, wide, pictures) if prefix != "context_refiner" else
                   attention(w, at + r"attention.*", n, wide, pictures)], 4 * n * wide)
            s.add([mlp(w, at + r"(feed_forward|ffn).*", n, wide, inner, 2, pictures)], 4 * n * wide)

    s.add([plain(w, r"t_embedder\..*|x_embedder\..*|x_pad_token", image, wide, pictures)], 4 * image * wide)
    layers("noise_refiner", 2, image)
    refined = len(s.blocks)
    s.add([plain(w, r"cap_.*", text, wide, pictures)], 4 * text * wide)
    layers("context_refiner", 2, text)
    s.span(4 * image * wide, refined - 1, len(s.blocks))  # the picture waits while the words are refined
    layers("layers", 30, tokens)
    s.add([plain(w, r"final_layer\..*", image, wide, pictures)], 4 * 64 * image)
    s.always(4 * 64 * image)        # latent
    s.always(4 * text * 2560)       # caption
    s.always(4 * tokens * 128)      # rope
    s.always(4 * 256)               # time
    return [qwen3_4b(shapes, text), s, kl_decoder(shapes, "vae-flux1", width, height, pictures)]


def wan_ti2v(shapes, width, height, frames):
    w = Weights(shapes, "wan2.2-ti2v-5b")
    fl, hl, wl = (frames - 1) // 4 + 1, height // 16, width // 16
    tokens, wide, inner, words, lanes = fl * (hl // 2) * (wl // 2), 3072, 14336, 512, 2
    s = Stage("denoise", lanes, 30)
    s.add([plain(w, r"(patch|time|text)_(embedding|projection).*", tokens, wide, lanes)], 4 * tokens * wide)
    for i in range(30):
        at = rf"blocks\.{i}\."
        s.add([attention(w, at + r"(self_attn\..*|modulation)", tokens, wide, lanes)], 4 * tokens * wide)
        s.add([attention(w, at + r"(cross_attn|norm3)\..*", tokens, wide, lanes, words)], 4 * tokens * wide)
        s.add([mlp(w, at + r"ffn\..*", tokens, wide, inner, 1, lanes)], 4 * tokens * wide)
    s.add([plain(w, r"head\..*", tokens, wide, lanes)], 4 * 192 * tokens)
    s.always(4 * 48 * fl * hl * wl)   # latent
    s.always(4 * words * 4096)        # text
    s.always(4 * words * wide)        # text, embedded
    s.always(4 * tokens * 6 * wide)   # modulation, one time per token
    s.always(4 * tokens * 128)        # rope

    # One latent frame a sweep; each causal convolution keeps the last two frames of its input.
    v = Weights(shapes, "vae-wan2.2", prefix="decoder.")
    d = Stage("decode", 1, fl)
    h, wd, n = hl, wl, 1

    def resnet(name):
        out, cin = v.shape(name + ".residual.2.weight")[:2]
        pixels = h * wd * n
        size, values = v.take(re.escape(name) + r"\..*")
        d.add([block(size, 4 * pixels * (cin + 2 * out), 4 * pixels * max(cin, out), 2 * values * pixels)], 4 * pixels * out)
        d.always(8 * h * wd * cin)
        d.always(8 * h * wd * out)

    size, values = v.take(r"conv1\..*")
    d.add([block(size, 4 * h * wd * 1024, 4 * h * wd * 1024, 2 * values * h * wd)], 4 * h * wd * 1024)
    d.always(8 * h * wd * 48)
    resnet("middle.0")
    d.add([attention(v, r"middle\.1\..*", h * wd, 1024, 1)], 4 * h * wd * 1024)
    resnet("middle.2")
    for level in range(4):
        for i in range(3):
            resnet(f"upsamples.{level}.upsamples.{i}")
        if level == 3:
            break
        at = rf"upsamples\.{level}\.upsamples\.3\..*"
        c = v.shape(f"upsamples.{level}.upsamples.3.resample.1.weight")[0]
        size, values = v.take(at)
        if level < 2:
            d.always(8 * h * wd * c)  # before frames double
            n *= 2
        h, wd = 2 * h, 2 * wd
        pixels = h * wd * n
        d.add([block(size, 4 * pixels * c, 4 * pixels * c, 2 * values * pixels)], 4 * pixels * c)
    pixels = h * wd * n
    size, values = v.take(r"head\..*")
    d.add([block(size, 4 * pixels * 256, 4 * pixels * 256, 2 * values * pixels)], 4 * pixels * 12)
    d.always(8 * h * wd * 256)
    return [umt5_xxl(shapes, words, lanes), s, d]


def sdxl(shapes, width, height, lanes):
    w = Weights(shapes, "sdxl-base-full", prefix="model.diffusion_model.")
    s = Stage("denoise", lanes, 20)
    hw = width * height // 64
    skips = []

    def resnet(name, pixels):
        out, cin = w.shape(name + ".in_layers.2.weight")[:2]
        size, values = w.take(re.escape(name) + r"\..*")
        s.add([block(size, 4 * pixels * (cin + 2 * out), 4 * pixels * max(cin, out), lanes * 2 * values * pixels)], 4 * pixels * out)
        return out

    def transformer(name, pixels, c):
        at = re.escape(name)
        s.add([plain(w, at + r"\.(norm|proj_in)\..*", pixels, c, lanes)], 4 * pixels * c)
        s.span(4 * pixels * c, len(s.blocks) - 2, len(s.blocks) + 3 * depth(name))  # what it is added to
        for i in range(depth(name)):
            t = at + rf"\.transformer_blocks\.{i}\."
            s.add([attention(w, t + r"(attn1|norm1)\..*", pixels, c, lanes)], 4 * pixels * c)
            s.add([attention(w, t + r"(attn2|norm2)\..*", pixels, c, lanes, 77)], 4 * pixels * c)
            s.add([mlp(w, t + r"(ff|norm3)\..*", pixels, c, 8 * c, 1, lanes)], 4 * pixels * c)
        s.add([plain(w, at + r"\.proj_out\..*", pixels, c, lanes)], 4 * pixels * c)

    def depth(name):
        return len({t[0].split(".transformer_blocks.")[1].split(".")[0] for t in w.tensors if t[0].startswith(name + ".transformer_blocks.")})

    def has(prefix):
        return any(t[0].startswith(prefix) for t in w.tensors)

    size, values = w.take(r"(time_embed|label_emb)\..*")
    s.add([block(size, 4 * 2816, 4 * 2816, lanes * 2 * values)], 4 * 1280)
    s.span(4 * 1280, 0, 10000)
    size, values = w.take(r"input_blocks\.0\.0\..*")
    s.add([block(size, 0, 0, lanes * 2 * values * hw)], 4 * hw * 320)
    skips.append((4 * hw * 320, len(s.blocks) - 1))
    c = 320
    for i in range(1, 9):
        at = f"input_blocks.{i}."
        if has(at + "0.op."):
            hw //= 4
            size, values = w.take(re.escape(at) + r"0\.op\..*")
            s.add([block(size, 4 * hw * c, 4 * hw * c, lanes * 2 * values * hw)], 4 * hw * c)
        else:
            c = resnet(at + "0", hw)
            if has(at + "1."):
                transformer(at + "1", hw, c)
        skips.append((4 * hw * c, len(s.blocks) - 1))
    resnet("middle_block.0", hw)
    transformer("middle_block.1", hw, c)
    resnet("middle_block.2", hw)
    for i in range(9):
        at = f"output_blocks.{i}."
        skip, made = skips.pop()
        s.span(skip, made, len(s.blocks))
        c = resnet(at + "0", hw)
        if has(at + "1.transformer_blocks."):
            transformer(at + "1", hw, c)
        for u in ("1", "2"):
            if has(at + u + ".conv."):
                hw *= 4
                size, values = w.take(re.escape(at + u) + r"\.conv\..*")
                s.add([block(size, 4 * hw * c, 4 * hw * c, lanes * 2 * values * hw)], 4 * hw * c)
    size, values = w.take(r"out\..*")
    s.add([block(size, 4 * hw * c, 4 * hw * c, lanes * 2 * values * hw)], 4 * hw * 4)
    s.state = [(a, b, min(t, len(s.blocks) - 1)) for a, b, t in s.state]
    s.always(4 * hw * 4)
    s.always(4 * 77 * 2048)

    e = Stage("encode", lanes, 1)
    wl = Weights(shapes, "sdxl-base-full", prefix="conditioner.embedders.0.transformer.text_model.")
    for i in range(11):
        at = rf"encoder\.layers\.{i}\."
        e.add([attention(wl, at + r"(self_attn|layer_norm1)\..*", 77, 768, lanes)], 4 * 77 * 768)
        e.add([mlp(wl, at + r"(mlp|layer_norm2)\..*", 77, 768, 3072, 1, lanes)], 4 * 77 * 768)
    wg = Weights(shapes, "sdxl-base-full", prefix="conditioner.embedders.1.model.")
    for i in range(32):
        at = rf"transformer\.resblocks\.{i}\."
        e.add([attention(wg, at + r"(attn|ln_1)\..*", 77, 1280, lanes)], 4 * 77 * 1280)
        e.add([mlp(wg, at + r"(mlp|ln_2)\..*", 77, 1280, 5120, 1, lanes)], 4 * 77 * 1280)
    return [e, s, kl_decoder(shapes, "vae-sd", width, height, 1)]


def decode_pressure(shapes):
    """A declared case: 28 layers of 0.2 GiB, and the decoder of a 1024 x 1024 picture whose convolutions are unfolded row by row, so that
    its widest block and what crosses it take 7.8 GiB."""
    tokens, wide, inner, lanes = 4352, 3072, 12288, 2
    s = Stage("denoise", lanes, 20)
    for _ in range(28):
        part = GIB // 5
        s.add([block(part * 2 // 5, 20 * tokens * wide, 4 * tokens * wide, lanes * (part * 2 // 5 * tokens + 4 * tokens * tokens * wide))],
              4 * tokens * wide)
        s.add([block(part * 3 // 5, 4 * tokens * (wide + inner), 4 * tokens * inner, lanes * part * 3 // 5 * tokens)], 4 * tokens * wide)
    s.always(4 * 64 * 4096)
    s.always(4 * tokens * 6 * wide)
    wl = Weights(shapes, "clip-l")
    e = Stage("encode", lanes, 1)
    for i in range(12):
        at = rf"text_model\.encoder\.layers\.{i}\."
        e.add([attention(wl, at + r"(self_attn|layer_norm1)\..*", 77, 768, lanes)], 4 * 77 * 768)
        e.add([mlp(wl, at + r"(mlp|layer_norm2)\..*", 77, 768, 3072, 1, lanes)], 4 * 77 * 768)
    d = kl_decoder(shapes, "vae-flux1", 1024, 1024, 1)
    crossing = 4 * 1024 * 1024 * (256 + 128)
    factor = (7.8 * GIB - crossing) / max(b["workspace"] for b in d.blocks)
    for b in d.blocks:
        b["workspace"] = up(b["workspace"] * factor)
    return [e, s, d]


def main():
    shapes = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parents[2] / "tests/golden/plans")
    cases = {
        "decode_pressure": ("a 5.6 GiB denoiser and a 7.8 GiB decode", decode_pressure(shapes)),
        "wan22_ti2v_5b": ("Wan 2.2 TI2V-5B, f16, 480 x 832, 33 frames", wan_ti2v(shapes, 832, 480, 33)),
        "z_image_bf16": ("Z-Image Turbo, bf16 (11.5 GiB), 1024 x 1024, 4 pictures", z_image(shapes, False, 4, 1024, 1024)),
        "z_image_q8": ("Z-Image Turbo, Q8_0 (6.7 GB), 1024 x 1024, 4 pictures", z_image(shapes, True, 4, 1024, 1024)),
        "sdxl": ("SDXL, f16, 1024 x 1024", sdxl(shapes, 1024, 1024, 2)),
    }
    for name, (about, stages) in cases.items():
        text = json.dumps({
            "about": about, "made_by": "tools/plans/make_fixtures.py", "alignment": ALIGNMENT, "chunk": CHUNK,
            "link_bytes_per_s": LINK, "link_latency_s": LATENCY, "stages": [s.json() for s in stages]
        }, indent=1)
        # One line per block and per value.
        text = re.sub(r"\[\s+(\d+),\s+(-?\d+),\s+(-?\d+),\s+(\d+)\s+\]", r"[\1, \2, \3, \4]", text)
        text = re.sub(r'\{\s+("weights": \d+),\s+("workspace": \d+),\s+("contiguous": \d+),\s+("compute_s": [\d.e-]+)\s+\}',
                      r"{\1, \2, \3, \4}", text)
        (out / f"{name}.json").write_text(text + "\n")
        for s in stages:
            weights = sum(b["weights"] for b in s.blocks)
            seconds = sum(b["compute_s"] for b in s.blocks)
            print(f"{name:16} {s.name:8} {len(s.blocks):4} blocks {weights / GIB:6.2f} GiB, {seconds:.3g} s a sweep")


main()
