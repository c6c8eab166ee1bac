#!/usr/bin/env python3
"""compare.py OLD.jsonl NEW.jsonl: fails when a figure of `sluice-bench core` got worse by more than 5 %.

Lines are matched by model, figure and place among the lines of that figure. Lower is better for every key compared here. Figures on the
real clock are compared only when both files come from one CPU model."""

import json
import pathlib
import sys

ALLOWED = 1.05
COMPARED = ("step_over_roofline", "step_s", "bytes_per_step", "ratio", "smallest_over_bound", "read_over_file", "bytes_read", "bytes_copied", "worst_ms")


def load(path):
    lines, seen = {}, {}
    for text in pathlib.Path(path).read_text().splitlines():
        if not text.strip():
            continue
        line = json.loads(text)
        key = (line["model"], line["figure"])
        seen[key] = seen.get(key, 0) + 1
        lines[(*key, seen[key])] = line
    return lines


def losses(old, new):
    for key, before in old.items():
        after = new.get(key)
        if after is None:
            yield f"{key}: no longer measured"
            continue
        if before.get("clock") == "real" and before["cpu"] != after["cpu"]:
            continue
        for name in COMPARED:
            if name in before and (name not in after or after[name] > before[name] * ALLOWED + 1e-12):
                yield f"{key} {name}: {before[name]} became {after.get(name)}"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    found = list(losses(load(sys.argv[1]), load(sys.argv[2])))
    print("\n".join(found) or "no loss above 5 %")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
