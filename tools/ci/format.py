#!/usr/bin/env python3
"""Formats all sources with the pinned clang-format, or with --check names those that are not formatted and exits 1."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ["src", "include", "tests", "bench"]


def main():
    files = sorted(str(f.relative_to(ROOT)) for top in FOLDERS for f in (ROOT / top).rglob("*") if f.suffix in (".h", ".cpp"))
    mode = ["--dry-run", "--Werror", "--ferror-limit=1"] if "--check" in sys.argv[1:] else ["-i"]
    done = subprocess.run(["clang-format-19", *mode, *files], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout + "not formatted: run `make format`")
    else:
        print(f"format: {len(files)} files")
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
