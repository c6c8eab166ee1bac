"""CLIP byte-pair encoding from the plain merges file, independent of any tokenizer library."""
import gzip
import pathlib

import regex

VOCAB = pathlib.Path(__file__).resolve().parents[2] / "models" / "vocab" / "clip" / "bpe_simple_vocab_16e6.txt.gz"


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [b for b in range(256) if b not in printable]
    chars = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    return dict(zip(order, chars))


class ClipBpe:
    BOS, EOS = 49406, 49407
    SPLIT = regex.compile(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+")

    def __init__(self, path=VOCAB):
        lines = gzip.open(path, "rt", encoding="utf-8").read().split("\n")
        self.merges = [tuple(x.split()) for x in lines[1:48895]]
        self.rank = {m: i for i, m in enumerate(self.merges)}
        self.bytes = byte_alphabet()
        units = list(self.bytes.values())
        names = units + [u + "</w>" for u in units] + ["".join(m) for m in self.merges]
        names += ["<|startoftext|>", "<|endoftext|>"]
        self.id = {n: i for i, n in enumerate(names)}

    def word(self, token):
        if token in ("<|startoftext|>", "<|endoftext|>"):
            return [self.id[token]]
        parts = [self.bytes[b] for b in token.encode("utf-8")]
        parts[-1] += "</w>"
        while len(parts) > 1:
            best = min(zip(parts, parts[1:]), key=lambda p: self.rank.get(p, 1 << 30))
            if best not in self.rank:
                break
            out, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == best:
                    out.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    out.append(parts[i])
                    i += 1
            parts = out
        return [self.id[p] for p in parts]

    def encode(self, text):
        """Ids without begin and end; text is only lower-cased and split (no html or mojibake repair)."""
        return [i for t in self.SPLIT.findall(text.lower()) for i in self.word(t)]

    def padded(self, text, width=77, pad=None):
        body = self.encode(text)[: width - 2]
        ids = [self.BOS, *body, self.EOS]
        return ids + [self.EOS if pad is None else pad] * (width - len(ids))
