#!/usr/bin/env python3
"""Checks that every #include in src/ and include/ goes the way the architecture allows.

The table below is the one in docs: a folder may include itself and what its row names. Prints one line per offence and exits 1.
`--self-test` checks the checker on small made-up trees.
"""

import pathlib
import re
import sys
import tempfile

ALL = ["base", "io", "device", "nn", "residency", "exec", "models", "text", "sampling", "pipeline"]
ALLOWED = {
    "base": [],
    "io": ["base"],
    "device": ["base"],
    "nn": ["base"],
    "residency": ["base", "io", "device", "nn"],
    "exec": ["base", "residency", "device", "nn"],
    "models": ["base", "nn", "io"],
    "text": ["base"],
    "sampling": ["base"],
    "pipeline": [*ALL, "sluice"],
    "cli": ["base", "sluice"],
    "golden": [*ALL, "cli", "sluice"],  # the golden runner is a developer's tool and looks at everything
    "sluice": ["base"],  # include/sluice, the public headers
}
# What a folder's tests may include besides.
TESTS_ALSO = {
    "models": ["sampling"],  # the golden inputs of the denoisers come from the random streams
}
# Folders that may name ggml at all, and what of it: the others see it through the folders below them.
GGML_ANY = {"ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpp.h", "gguf.h"}
GGML = {
    "io": {"ggml.h", "ggml-cpp.h", "gguf.h"},
    "device": GGML_ANY,
    "nn": GGML_ANY,
    "residency": GGML_ANY,
    "exec": GGML_ANY,
    "models": {"ggml.h"},
    "pipeline": GGML_ANY,
    "golden": GGML_ANY,
}
# ggml-cpu.h for its types alone: ggml_cplan has no other declaration, and the functions are looked up at run time.
CPU_TYPES_ONLY = {"src/device/cpu_controls.cpp"}
# Other libraries, by the folders that may use them; tests, and libraries not named here, are free.
# A test may also use POSIX and the whole of GGML_ANY: it runs where developers are and links what it likes.
LIBRARIES = {
    r"nlohmann/.*": {"io", "pipeline", "cli", "golden"},
    r"CLI/.*": {"cli", "golden"},
    r"png\.h|webp/.*|stb.*": {"io"},
    r"zlib\.h": {"io", "text"},
    r"utf8proc\.h": {"text"},
}
POSIX = re.compile(
    r"(unistd|fcntl|pthread|dirent|dlfcn|poll|sched|termios|signal|spawn|pwd|glob|syslog|netdb|semaphore|aio)\.h|(sys|net|netinet|arpa|linux)/.*")
SUFFIXES = (".h", ".cpp", ".cc", ".inc")
POSIX_FOLDERS = {"base", "io"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def folder_of(path, root):
    parts = path.relative_to(root).parts
    return parts[1] if len(parts) > 2 else ""


def includes_of(path):
    return [m.group(1) or m.group(2) for m in map(INCLUDE.match, path.read_text(encoding="utf-8", errors="replace").splitlines()) if m]


def test_files(root):
    """The test programs' sources, and the headers that nothing but tests includes."""
    users = {}
    files = [f for f in (root / "src").rglob("*") if f.suffix in SUFFIXES and f.is_file()]
    for path in files:
        for header in includes_of(path):
            users.setdefault(root / "src" / header, set()).add(path)
    tests = {f for f in files if f.name.endswith("_test.cpp")}
    while True:
        more = {f for f in files if f.suffix == ".h" and f not in tests and users.get(f) and users[f] <= tests}
        if not more:
            return tests
        tests |= more


def check_file(path, root, test):
    """Yields (line, sentence) for each offence of one file; `test`: it is part of a test program only."""
    folder = folder_of(path, root)
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".h" and "#pragma once" not in text:
        yield 1, "a header needs #pragma once"
    if folder not in ALLOWED:
        yield 1, f"the folder {folder or path.parent.name}/ has no row in tools/check_layers.py"
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1) or match.group(2)
        first = header.split("/")[0] if "/" in header else ""
        if re.fullmatch(r"(ggml|gguf)[\w.-]*\.h|ggml/.*", header):
            if header == "ggml-cpu.h" and path.relative_to(root).as_posix() in CPU_TYPES_ONLY:
                continue
            if header == "ggml-cpu.h":
                yield number, "ggml-cpu.h cannot be linked where the CPU backend is a plugin: use ggml_backend_reg_get_proc_address"
            elif header not in GGML_ANY:
                yield number, f"{header} is not among ggml's portable public headers ({', '.join(sorted(GGML_ANY))})"
            elif not test and header not in GGML.get(folder, set()):
                yield number, f"{folder}/ may not include {header}"
        elif POSIX.fullmatch(header):
            if not test and folder not in POSIX_FOLDERS:
                yield number, f"{header} is POSIX: only {' and '.join(sorted(POSIX_FOLDERS))} may include it"
        elif first in ALLOWED:
            if match.group(2) and first != "sluice":
                yield number, f'write "{header}", not <{header}>'
            if first != folder and first not in ALLOWED[folder] + (TESTS_ALSO.get(folder, []) if test else []):
                yield number, f"{folder}/ may not include {first}/"
        elif match.group(1) and not first:
            yield number, f'write "folder/{header}"'
        elif header.startswith("doctest/"):
            if not test:
                yield number, "doctest belongs in *_test.cpp and in headers that only these include"
        elif not test:
            for pattern, folders in LIBRARIES.items():
                if re.fullmatch(pattern, header) and folder not in folders:
                    yield number, f"{folder}/ may not include {header}"


def check_tree(root):
    """All offences under root as printable lines."""
    found = []
    tests = test_files(root)
    for top in ("src", "include"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                found += [f"{path.relative_to(root)}:{line}: {what}" for line, what in check_file(path, root, path in tests)]
    return found


def self_test():
    good = {
        "src/base/a.h": "#pragma once\n#include <unistd.h>\n",
        "src/io/a.cpp": '#include "base/a.h"\n#include <nlohmann/json.hpp>\n#include "gguf.h"\n#include <sys/mman.h>\n',
        "src/exec/a_test.cpp": '#include "device/d.h"\n#include <doctest/doctest.h>\n#include "ggml-backend.h"\n',
        "src/models/a_test.cpp": '#include "sampling/s.h"\n#include <unistd.h>\n#include "gguf.h"\n',
        "src/cli/main.cpp": '#include "sluice/engine.h"\n#include "base/a.h"\n#include <CLI/CLI.hpp>\n',
        "src/golden/main.cpp": '#include "models/m.h"\n#include "pipeline/p.h"\n',
        "include/sluice/engine.h": '#pragma once\n#include <string>\n#include "sluice/options.h"\n',
    }
    bad = {  # each must give exactly one offence
        "src/base/up.cpp": '#include "io/file.h"\n',
        "src/nn/sideways.cpp": '#include "device/device.h"\n',
        "src/models/run.cpp": '#include "exec/sweep.h"\n',
        "src/text/ggml.cpp": '#include "ggml.h"\n',
        "src/device/cpu.cpp": '#include "ggml-cpu.h"\n',
        "src/device/cuda.cpp": '#include "ggml-cuda.h"\n',
        "src/device/impl.cpp": '#include "ggml-impl.h"\n',
        "src/exec/posix.cpp": "#include <unistd.h>\n",
        "src/sampling/posix.cpp": "  #  include <sys/mman.h>\n",
        "src/cli/deep.cpp": '#include "pipeline/txt2img.h"\n',
        "src/exec/json.cpp": "#include <nlohmann/json.hpp>\n",
        "src/exec/bare.cpp": '#include "plan.h"\n',
        "src/exec/angle.cpp": "#include <exec/plan.h>\n",
        "src/exec/doctest.cpp": "#include <doctest/doctest.h>\n",
        "src/nn/helper.h": "#pragma once\n#include <doctest/doctest.h>\n",  # no test includes it
        "src/exec/deep_test.cpp": '#include "pipeline/p.h"\n',
        "src/device/cpu_test.cpp": '#include "ggml-cpu.h"\n',
        "src/exec/guard.h": "\n",
        "src/other/new.cpp": "\n",
        "include/sluice/json.h": "#pragma once\n#include <nlohmann/json.hpp>\n",
        "include/sluice/ggml.h": '#pragma once\n#include "ggml.h"\n',
        "include/sluice/inner.h": '#pragma once\n#include "exec/plan.h"\n',
    }
    wrong = []
    with tempfile.TemporaryDirectory() as folder:  # a header of tests only may do what tests may
        root = pathlib.Path(folder)
        (root / "src/text").mkdir(parents=True)
        (root / "src/text/runner.h").write_text('#pragma once\n#include <doctest/doctest.h>\n#include "ggml.h"\n')
        (root / "src/text/a_test.cpp").write_text('#include "text/runner.h"\n')
        if check_tree(root):
            wrong.append("a header of tests only is refused")
        (root / "src/text/a.cpp").write_text('#include "text/runner.h"\n')
        if len(check_tree(root)) != 2:
            wrong.append("a test header in the library is let through")
    for name, text in {**good, **bad}.items():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
            found = check_tree(pathlib.Path(folder))
            if len(found) != (name in bad):
                wrong.append(f"{name}: {found or 'nothing found'}")
    print("\n".join(wrong) or f"check_layers: self-test of {len(good) + len(bad)} trees passed")
    return bool(wrong)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    found = check_tree(root)
    print("\n".join(found) or "check_layers: every include goes the allowed way")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
