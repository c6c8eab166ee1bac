#!/usr/bin/env python3
"""Runs clang-tidy over src/*/*.cpp (tests apart), headers included, N files at once; any finding fails.

A file that was found clean is not looked at again until it, a header of ours that it reaches, .clang-tidy or clang-tidy changes: clean
results are remembered by the hash of all of these, beside ccache's cache, so a fresh clone profits too.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = "clang-tidy-19"
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.M)
# Compile options of GCC that clang does not know must not count as findings.
EXTRA = ["--extra-arg=-Wno-unknown-warning-option"]


@functools.cache
def read(path):
    return path.read_bytes()


@functools.cache
def includes(path):
    found = (top / name.decode() for name in INCLUDE.findall(read(path)) for top in (ROOT / "src", ROOT / "include"))
    return [f for f in found if f.is_file()]


def closure(path):
    """The file and every header of ours that it reaches, sorted."""
    seen, queue = {path}, [path]
    while queue:
        new = [f for f in includes(queue.pop()) if f not in seen]
        seen.update(new)
        queue += new
    return sorted(seen)


def key_of(path, command, salt):
    digest = hashlib.sha256(salt)
    digest.update(command.replace(str(ROOT), "").encode())
    for part in closure(path):
        digest.update(str(part.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(read(part)).digest())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="a configured and built folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("files", nargs="*", help="only these")
    options = parser.parse_args()
    build = ROOT / options.build
    wanted = {pathlib.Path(f).resolve() for f in options.files}
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        inside = path.is_relative_to(ROOT / "src") and not path.name.endswith("_test.cpp")
        if (path in wanted) if wanted else inside:
            commands.setdefault(path, entry["command"])
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice-tidy"
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([TOOL, "--version"], stdout=subprocess.PIPE, check=True).stdout
    # The compiler's own library headers take part as well; its version stands for them.
    compiler = subprocess.run(["c++", "--version"], stdout=subprocess.PIPE, check=True).stdout
    salt = version + compiler + (ROOT / ".clang-tidy").read_bytes()

    def examine(path):
        stamp = cache / key_of(path, commands[path], salt)
        if stamp.exists():
            return None
        done = subprocess.run([TOOL, "-p", str(build), "--quiet", *EXTRA, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, check=False)
        if done.returncode == 0:
            stamp.touch()
            return ""
        return f"{path.relative_to(ROOT)}:\n{done.stdout or done.stderr}"

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(examine, sorted(commands)))
    print("".join(r for r in results if r), end="")
    bad = sum(1 for r in results if r)
    print(f"tidy: {len(results)} files, {sum(r is None for r in results)} known clean, {bad} with findings")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
