#!/usr/bin/env python3
"""Black-box tests of the program: cli_test.py SLUICE SOURCE_DIR. Closes with `N passed, N failed`."""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

SLUICE, SOURCE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
MODEL = SOURCE / "tests/golden/pipeline/sd1_checkpoint/model.safetensors"
BAD_FILES = SOURCE / "tests/golden/safetensors/files"
REQUEST = ["--model", MODEL, "--prompt", "a red apple", "--seed", "7", "--steps", "2", "--width", "64", "--height", "64", "--threads", "1"]
SIM_REQUEST = REQUEST[:-2]


def run(*arguments, cwd=None):
    return subprocess.run([SLUICE, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=600, check=False)


def png_chunks(path):
    data = pathlib.Path(path).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at:at + 4])
        yield data[at + 4:at + 8], data[at + 8:at + 8 + size]
        at += size + 12


def pixels(path):
    """The picture's bytes, undone as far as filters: equal pictures written by one program have equal bytes here."""
    return zlib.decompress(b"".join(body for kind, body in png_chunks(path) if kind == b"IDAT"))


def text_of(path):
    return dict(body.split(b"\0", 1) for kind, body in png_chunks(path) if kind == b"tEXt")


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = pathlib.Path(self.folder.name) / "out.png"

    def check(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        for word in words:
            self.assertIn(word, result.stderr if code else result.stdout)
        if code:
            # The second line of every message says what to do.
            self.assertGreaterEqual(len(result.stderr.strip().splitlines()), 2, result.stderr)
            self.assertEqual(os.listdir(self.folder.name), [], "a failed run left a file")

    def plan(self, *more):
        result = run("plan", *REQUEST, "--json", *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_picture_and_its_text(self):
        self.check(run("generate", *REQUEST, "--output", self.out), 0, "where the memory went", "peak", "denoise")
        text = next(iter(text_of(self.out).values())).decode("latin-1")
        for part in ("a red apple", "Steps: 2", "Seed: 7", "Size: 64x64"):
            self.assertIn(part, text)

    def test_default_name_and_quiet(self):
        result = run("generate", *REQUEST, "--quiet", cwd=self.folder.name)
        self.check(result, 0)
        self.assertEqual((result.stdout, result.stderr), ("", ""))
        self.assertEqual(os.listdir(self.folder.name), ["sluice-7.png"])

    def test_no_progress_bar_without_terminal(self):
        self.assertNotIn("\r", run("generate", *REQUEST, "--output", self.out).stderr)

    def test_batch_names_and_seeds(self):
        self.check(run("generate", *REQUEST, "--batch", "2", "--output", self.out), 0)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["out-0001.png", "out-0002.png"])
        single = pathlib.Path(self.folder.name) / "single.png"
        next_seed = ["8" if a == "7" else a for a in REQUEST]
        self.check(run("generate", *next_seed, "--output", single), 0)
        self.assertEqual(pixels(single), pixels(self.out.with_name("out-0002.png")))

    def test_generate_json(self):
        result = run("generate", *REQUEST, "--json", "--output", self.out)
        self.check(result, 0)
        report = json.loads(result.stdout)
        self.assertEqual(report["pictures"][0]["seed"], 7)
        self.assertEqual(report["pictures"][0]["file"], str(self.out))
        self.assertEqual([run_["name"] for run_ in report["runs"]], ["encode", "denoise", "decode"])

    def test_plan_json(self):
        report = self.plan()
        for key in ("smallest_budget", "full_budget", "budget", "backend", "planned", "stages"):
            self.assertIn(key, report)
        self.assertEqual([stage["name"] for stage in report["stages"]], ["encode", "denoise", "decode"])
        for stage in report["stages"]:
            self.assertEqual(sum(block["weights"] for block in stage["blocks"]), stage["weights"])
            self.assertTrue(all(block["why"] for block in stage["blocks"]))

    def test_plan_text(self):
        self.check(run("plan", *REQUEST), 0, "smallest budget", "denoise", "workspace", "a step")

    def test_smallest_budget_works_and_four_kib_less_is_refused(self):
        report = self.plan()
        smallest, full = report["smallest_budget"], report["full_budget"]
        self.assertLess(smallest, full)
        whole = pathlib.Path(self.folder.name) / "whole.png"
        self.check(run("generate", *REQUEST, "--output", whole), 0)
        expected = pixels(whole)
        for budget in (smallest, (smallest + full) // 2, full):
            result = run("generate", *REQUEST, "--device-budget", budget, "--json", "--output", self.out)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLessEqual(json.loads(result.stdout)["peak"], budget)
            self.assertEqual(pixels(self.out), expected, budget)
            self.out.unlink()
        whole.unlink()
        for command in ("generate", "plan"):
            refused = run(command, *REQUEST, "--device-budget", smallest - 4096, *(["--output", self.out] if command == "generate" else []))
            self.check(refused, 3, str(smallest), "--device-budget")
        refused = run("plan", *REQUEST, "--device-budget", smallest - 4096, "--json")
        self.assertEqual(json.loads(refused.stdout)["smallest_budget"], smallest)

    def test_leave_free(self):
        for form in (["--device-budget=-1GiB"], ["--device-budget", "-1GiB"]):
            self.assertGreater(self.plan(*form)["budget"], 0)

    def test_policies(self):
        for policy in ("interleaved", "first-k", "all-streamed", "all-resident"):
            with self.subTest(policy=policy):
                self.check(run("plan", *REQUEST, "--policy", policy), 0)

    def test_simulated_device(self):
        device = ["--device", "sim:memory=64MiB,link=200MB/s,compute=50GFLOPS,threads=1", "--reserve", "1MiB"]
        self.check(run("generate", *SIM_REQUEST, *device, "--output", self.out), 0, "on sim")
        real = pathlib.Path(self.folder.name) / "real.png"
        self.check(run("generate", *REQUEST, "--output", real), 0)
        self.assertEqual(pixels(self.out), pixels(real))

    def test_device_faults(self):
        for fault in ("fail-alloc=1,fail-allocs=10", "fail-copy=3", "fail-compute=5"):
            result = run("generate", *SIM_REQUEST, "--device", f"sim:threads=1,{fault}", "--output", self.out)
            self.check(result, 5)

    def test_usage(self):
        for arguments, word in (
            (["generate", "--model", MODEL], "--prompt"),
            (["generate", "--prompt", "x"], "--model"),
            (["generate", *REQUEST, "--steps", "0"], "--steps"),
            (["generate", *REQUEST, "--device-budget", "6 dogs"], "--device-budget"),
            (["generate", *REQUEST, "--sampler", "nonsense"], "euler"),
            (["generate", *REQUEST, "--schedule", "nonsense"], "karras"),
            (["generate", *REQUEST, "--policy", "nonsense"], "interleaved"),
            (["generate", *SIM_REQUEST, "--device", "nonsense"], "cpu"),
            (["generate", *SIM_REQUEST, "--device", "sim:nonsense=1"], "nonsense"),
            (["generate", *SIM_REQUEST, "--device", "sim", "--threads", "2"], "--threads"),
            (["generate", *REQUEST, "--output", "no-such-folder/x.png"], "no-such-folder"),
            (["generate", *REQUEST, "--output", "x.jpg"], "PNG"),
            (["generate", *REQUEST[:10], "--width", "65"], "64"),
            (["generate", *REQUEST, "--nonsense"], "nonsense"),
            (["nonsense"], "nonsense"),
            ([], "subcommand"),
        ):
            # A later occurrence is refused, not silently taken: drop the earlier one where a row overrides it.
            seen = arguments[-2] if len(arguments) > 2 else None
            if seen in REQUEST and arguments.count(seen) == 2:
                at = arguments.index(seen)
                arguments = arguments[:at] + arguments[at + 2:]
            with self.subTest(arguments=arguments):
                self.check(run(*arguments, cwd=self.folder.name), 2, word)

    def test_bad_files(self):
        for name in ("bad_truncated_data", "bad_overlapping", "bad_not_json", "bad_empty_file", "ok_names"):
            path = BAD_FILES / f"{name}.safetensors"
            with self.subTest(name=name):
                self.check(run("generate", "--model", path, "--prompt", "x", "--output", self.out), 4, name)
        self.check(run("generate", "--model", "no-such-file", "--prompt", "x", "--output", self.out), 4, "no-such-file")
        self.check(run("inspect", BAD_FILES / "bad_not_json.safetensors"), 4, "bad_not_json")
        self.check(run("inspect", self.folder.name), 4)

    def test_error_as_json(self):
        result = run("inspect", "no-such-file", "--json")
        self.assertEqual(json.loads(result.stdout)["error"]["exit"], 4)
        result = run("plan", *REQUEST, "--json", "--steps-typo")
        self.assertEqual(json.loads(result.stdout)["error"]["exit"], 2)

    def test_inspect(self):
        self.check(run("inspect", MODEL), 0, "denoiser", "text encoder", "f16")
        report = json.loads(run("inspect", MODEL, "--json").stdout)
        self.assertEqual(report["bytes"], MODEL.stat().st_size)
        self.assertGreaterEqual(len(report["components"]), 3)
        self.assertTrue(all(not component["missing"] for component in report["components"]))

    def devices(self, *arguments, cache="cache"):
        environment = {**os.environ, "XDG_CACHE_HOME": str(pathlib.Path(self.folder.name) / cache)}
        result = subprocess.run([SLUICE, "devices", *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False, env=environment)
        return result, json.loads(result.stdout) if "--json" in arguments and result.stdout else None

    def test_devices(self):
        result, _ = self.devices()
        self.check(result, 0, "cpu", "not measured yet", "sim:memory=")
        _, report = self.devices("--json")
        by_name = {device["name"]: device for device in report["devices"]}
        self.assertTrue(by_name["cpu"]["memory_known"])
        self.assertGreater(by_name["cpu"]["total"], by_name["cpu"]["free"])
        self.assertIsNone(by_name["cpu"]["measured"])
        self.assertEqual(by_name["sim"]["kind"], "simulated")
        self.assertEqual(os.listdir(self.folder.name), [], "nothing is written unless something is measured")

    def test_devices_measured_and_kept(self):
        result, report = self.devices("--measure", "--device", "cpu:threads=1", "--json")
        self.check(result, 0)
        self.assertIn("measuring cpu", result.stderr)
        fresh = report["devices"][0]["measured"]
        for key in ("largest_buffer", "to_device", "from_device", "latency_s", "flops_per_s"):
            self.assertGreater(fresh[key], 0, key)
        self.assertIn("f32", fresh["raw_types"])
        _, again = self.devices("--device", "cpu:threads=1", "--json")
        self.assertEqual(again["devices"][0]["measured"], fresh)
        self.assertIsNone(self.devices("--device", "cpu:threads=2", "--json")[1]["devices"][0]["measured"])
        cache = pathlib.Path(self.folder.name) / "cache/sluice/devices.json"
        cache.write_text("nonsense")
        self.assertIsNone(self.devices("--device", "cpu:threads=1", "--json")[1]["devices"][0]["measured"])

    def test_devices_simulated(self):
        device = "sim:threads=1,memory=24MiB,max-buffer=3MiB,link=200MB/s,compute=50GFLOPS"
        self.check(self.devices("--measure", "--device", device)[0], 0, "0.2 GB/s", "50 GFLOP/s", "3.00 MiB by asking", "copies overlap compute: 1.00")
        result, report = self.devices("--device", "sim:free=18446744073709551615", "--json")
        self.check(result, 0)
        self.assertFalse(report["devices"][0]["memory_known"])
        self.assertIn("below zero", report["devices"][0]["memory_doubt"])
        self.check(self.devices("--device", "sim:total=0")[0], 0, "not known", "no memory at all")

    def test_devices_disk(self):
        result, report = self.devices("--device", "sim", "--file", MODEL, "--json")
        self.check(result, 0)
        self.assertEqual(report["disk"]["bytes"], MODEL.stat().st_size)
        self.assertGreater(report["disk"]["bytes_per_s"], 0)
        self.check(self.devices("--device", "sim", "--file", "no-such-file")[0], 4, "no-such-file")
        self.check(self.devices("--device", "nonsense")[0], 4, "nonsense")

    def test_devices_cache_that_cannot_be_written(self):
        (pathlib.Path(self.folder.name) / "file").touch()
        result, report = self.devices("--measure", "--device", "cpu:threads=1", "--json", cache="file")
        self.check(result, 0)
        self.assertIn("not kept", result.stderr)
        self.assertGreater(report["devices"][0]["measured"]["flops_per_s"], 0)

    def test_help_and_version(self):
        for arguments in (["--help"], ["generate", "--help"], ["plan", "--help"], ["--version"]):
            self.check(run(*arguments), 0)
        self.assertIn("--device-budget", run("generate", "--help").stdout)

    def test_interrupt_leaves_no_file(self):
        for wanted in (signal.SIGINT, signal.SIGTERM):
            arguments = [a if a != "2" else "1000" for a in map(str, REQUEST)]
            process = subprocess.Popen([SLUICE, "generate", *arguments, "--output", self.out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(2)
            self.assertIsNone(process.poll(), "ended before it could be interrupted")
            process.send_signal(wanted)
            out, err = process.communicate(timeout=60)
            self.check(subprocess.CompletedProcess([], process.returncode, out, err), 130)


if __name__ == "__main__":
    result = unittest.TextTestRunner(verbosity=1).run(unittest.defaultTestLoader.loadTestsFromTestCase(Cli))
    failed = len({str(getattr(case, "test_case", case)) for case, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(failed != 0)
