#!/usr/bin/env python3
"""Builds the given presets, runs every test program of each and the checks of the sources, and counts.

Usage: run_tests.py [--preset NAME]... [--checks] [--jobs N] [--filter REGEX] [-D VAR=VALUE]...

The tests are those that CMake knows (add_test), with their properties ENVIRONMENT, WORKING_DIRECTORY, TIMEOUT, RUN_SERIAL, DISABLED
and SKIP_RETURN_CODE. Cases are counted from a program's own closing line: doctest's, or `N passed, N failed`; a program without one
counts as one case. A program that crashes, runs out of time, or exits non-zero without owning up to a failed case adds one.
The last line is `N passed, N failed`; the exit code is 0 only when nothing failed and something passed.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCTEST = re.compile(r"^\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*\|\s*(\d+) skipped", re.M)
CLOSING = re.compile(r"^(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$", re.M)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TIMEOUT_S = 1800
SANITIZERS = {
    # Leaks are looked for at exit; a hostile size must come back as an error of ours, so a huge allocation is no crash of its own.
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": f"suppressions={ROOT}/tools/ci/tsan.supp:second_deadlock_stack=1:exitcode=66",
}
print_lock = threading.Lock()


def say(text):
    with print_lock:
        print(text, flush=True)


def without_randomised_addresses():
    """`setarch -R` where it works: the sanitizers of GCC 12 cannot map their shadow under some kernels' address randomisation."""
    if not shutil.which("setarch"):
        return []
    command = ["setarch", os.uname().machine, "-R"]
    probe = subprocess.run([*command, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return command if probe.returncode == 0 else []


class Outcome:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped


def count_cases(output, code, skip_code=None):
    """Cases passed, failed and skipped, from a program's output and exit code (negative: killed by a signal)."""
    if skip_code is not None and code == skip_code:
        return Outcome(skipped=1)
    text = COLOUR.sub("", output)
    doctest = DOCTEST.findall(text)
    if doctest:
        _, passed, failed, skipped = (sum(map(int, column)) for column in zip(*doctest))
        outcome = Outcome(passed, failed, skipped)
    elif CLOSING.search(text):
        passed, failed, skipped = CLOSING.findall(text)[-1]
        outcome = Outcome(int(passed), int(failed), int(skipped or 0))
    else:
        outcome = Outcome(passed=int(code == 0))
    if code != 0 and outcome.failed == 0:
        outcome.failed = 1
    return outcome


def properties_of(test):
    return {p["name"]: p["value"] for p in test.get("properties", [])}


def run_program(label, command, properties, wrapper):
    """Runs one test; prints its line and, on failure, its output."""
    environment = {**os.environ, **SANITIZERS}
    for setting in properties.get("ENVIRONMENT", []):
        name, _, value = setting.partition("=")
        environment[name] = value
    limit = float(properties.get("TIMEOUT", TIMEOUT_S))
    begin = time.monotonic()
    try:
        done = subprocess.run([*wrapper, *command], cwd=properties.get("WORKING_DIRECTORY"), env=environment, timeout=limit,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        code, output = done.returncode, done.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as late:
        code, output = -1, (late.stdout or b"").decode("utf-8", "replace") + f"\nran past its limit of {limit:.0f} s\n"
    except OSError as error:
        code, output = 127, f"{error}\n"
    outcome = count_cases(output, code, properties.get("SKIP_RETURN_CODE"))
    if code == 0 and outcome.failed == 0 and outcome.passed == 0 and outcome.skipped == 0:
        outcome.failed, output = 1, output + "\nthe program ran no test case\n"
    if outcome.failed:
        kept = output if len(output) <= 20000 else output[:8000] + "\n[...]\n" + output[-12000:]
        say("\n".join(f"  {line}" for line in kept.splitlines()))
        if code < 0:
            say(f"  {label}: ended by signal {-code}")
    skipped = f", {outcome.skipped} skipped" if outcome.skipped else ""
    say(f"{'ok  ' if not outcome.failed else 'FAIL'} {label:<34} {outcome.passed:>5} cases, {outcome.failed} bad{skipped}  "
        f"{time.monotonic() - begin:6.1f} s")
    return outcome


def step(label, command):
    """One check or build step, counted as one case by its exit code. Its output shows only on failure."""
    return run_program(label, [str(part) for part in command], {"TIMEOUT": 3600, "WORKING_DIRECTORY": str(ROOT)}, [])


def run_preset(preset, options, broken):
    """Configures, builds and tests one preset. A failed build is one failed case, noted in `broken`; what was built is not run then."""
    folder = ROOT / "build" / preset
    build = step(f"{preset}: configure", ["cmake", "--preset", preset, *(f"-D{d}" for d in options.define)])
    if not build.failed:
        build = step(f"{preset}: build", ["cmake", "--build", folder])
    if build.failed:
        broken.append(preset)
        return [build]
    listing = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], stdout=subprocess.PIPE, check=True)
    tests = [t for t in json.loads(listing.stdout)["tests"] if re.search(options.filter, t["name"])]
    if not tests and options.filter == "":
        say(f"FAIL {preset}: no tests")
        return [Outcome(failed=1)]
    wrapper = without_randomised_addresses() if preset in ("dev", "tsan") else []

    def run_test(test):
        properties = properties_of(test)
        label = f"{preset}: {test['name']}"
        if properties.get("DISABLED"):
            say(f"skip {label}")
            return Outcome(skipped=1)
        if "command" not in test:
            say(f"FAIL {label}: its program was not built")
            return Outcome(failed=1)
        return run_program(label, test["command"], properties, wrapper)

    alone = [t for t in tests if properties_of(t).get("RUN_SERIAL")]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(run_test, [t for t in tests if t not in alone]))
    return outcomes + [run_test(t) for t in alone]


def run_checks(options, broken):
    python = sys.executable
    return [
        step("check: counting itself", [python, __file__, "--self-test"]),
        step("check: layers, self-test", [python, "tools/check_layers.py", "--self-test"]),
        step("check: layers", [python, "tools/check_layers.py"]),
        step("check: format", [python, "tools/ci/format.py", "--check"]),
        # A tree that does not compile has nothing more to learn from clang-tidy, which takes minutes to say so.
        *([] if broken else [step("check: tidy", [python, "tools/ci/tidy.py", "--build", f"build/{options.preset[0]}", "--jobs", options.jobs])]),
    ]


def self_test():
    """What a closing line means, by example: (output, exit code) -> (passed, failed, skipped)."""
    line = "[doctest] test cases:  {} |  {} passed | {} failed | {} skipped\n"
    examples = [
        ((line.format(12, 12, 0, 3), 0), (12, 0, 3)),
        ((line.format(12, 10, 2, 0), 1), (10, 2, 0)),
        (("\x1b[0;36m[doctest] \x1b[0mtest cases: 1 | \x1b[0;32m1 passed\x1b[0m | 0 failed\x1b[0m | 0 skipped\n", 0), (1, 0, 0)),
        ((line.format(12, 12, 0, 0), 1), (12, 1, 0)),  # a leak found at exit
        (("Segmentation fault", -11), (0, 1, 0)),
        (("", 127), (0, 1, 0)),
        (("fine\n", 0), (1, 0, 0)),
        (("case a ok\n7 passed, 0 failed\n", 0), (7, 0, 0)),
        (("7 passed, 1 failed, 2 skipped\n", 1), (7, 1, 2)),
        (("7 passed, 0 failed\n", -6), (7, 1, 0)),
        (("no card here\n", 77), (0, 0, 1)),
    ]
    wrong = 0
    for (output, code), expected in examples:
        got = count_cases(output, code, 77)
        if (got.passed, got.failed, got.skipped) != expected:
            wrong += 1
            print(f"{output!r}, exit {code}: {(got.passed, got.failed, got.skipped)}, expected {expected}")
    print(f"{len(examples) - wrong} passed, {wrong} failed")
    return wrong != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", action="append", default=[], help="a preset of CMakePresets.json to build and test")
    parser.add_argument("--checks", action="store_true", help="also check layers, format and, in the build of the first preset, clang-tidy")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="test programs at once")
    parser.add_argument("--filter", default="", help="only tests whose name matches")
    parser.add_argument("-D", dest="define", action="append", default=[], metavar="VAR=VALUE", help="passed on to cmake")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.checks and not options.preset:
        parser.error("--checks needs a --preset to run clang-tidy in")
    if options.self_test:
        return self_test()
    begin = time.monotonic()
    closing, broken, total = [], [], Outcome()
    for name in [*options.preset, *(["checks"] if options.checks else [])]:
        start = time.monotonic()
        outcomes = run_checks(options, broken) if name == "checks" else run_preset(name, options, broken)
        passed, failed, skipped = (sum(getattr(o, field) for o in outcomes) for field in ("passed", "failed", "skipped"))
        total.passed, total.failed, total.skipped = total.passed + passed, total.failed + failed, total.skipped + skipped
        closing.append(f"{name:<10} {passed:>6} ok {failed:>4} bad {skipped:>4} skipped {time.monotonic() - start:8.1f} s")
    say("\n" + "\n".join(closing) + f"\nin all {time.monotonic() - begin:.1f} s")
    say(f"{total.passed} passed, {total.failed} failed")
    return total.failed != 0 or total.passed == 0


if __name__ == "__main__":
    sys.exit(main())
