#!/usr/bin/env python3
"""The budget holds for the process: process_memory_test.py SLUICE SOURCE_DIR. Closes with `N passed, N failed`.

Runs that read the model instead of mapping it are put under RLIMIT_DATA (every private writable byte of address space, touched
or not, but for the main stack) of the device budget and an allowance for what is not the device's. What is really held comes
from /proc/PID/smaps_rollup, sampled while they run."""

import array
import json
import pathlib
import resource
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

SLUICE, SOURCE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
DEMO = SOURCE / "models/emoji-sd.safetensors"
MIB = 1 << 20

# What a run needs beside the device's budget and, with --tier read, the host's. In brackets what was measured.
LIBRARIES = 2 * MIB  # writable data of the program and its libraries [1.2]
# The heap [10.1]: tokenizer 2, and 5 more while its tables are made; graphs of all lanes 3; what the file's header says and the
# model's declarations 1; a piece of a file being converted 1; one being hashed 1.
HEAP = 11 * MIB
LINK_STACK = 8 * MIB + 132 * 1024  # of the thread that copies: reserved, hardly touched; with its part of the heap
CODE = 10 * MIB  # pages of program and libraries that no other process has in use: private, but not data [9]
PEAK_EVERY_S = 0.003


def widened(source, target):
    """The model with its f16 weights as f32: twice the size, the same pictures."""
    data = source.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header, body = json.loads(data[8:8 + size]), memoryview(data)[8 + size:]
    tensors, pieces, offset = {}, [], 0
    for name, tensor in header.items():
        if name == "__metadata__":
            tensors[name] = tensor
            continue
        assert tensor["dtype"] == "F16", name
        begin, end = tensor["data_offsets"]
        piece = array.array("f", struct.unpack(f"<{(end - begin) // 2}e", body[begin:end])).tobytes()
        tensors[name] = {"dtype": "F32", "shape": tensor["shape"], "data_offsets": [offset, offset + len(piece)]}
        pieces.append(piece)
        offset += len(piece)
    head = json.dumps(tensors).encode()
    target.write_bytes(b"".join([struct.pack("<Q", len(head)), head, *pieces]))


def pixels(path):
    """The picture's bytes before filters are undone: equal pictures written by one program have equal bytes here."""
    data, at, body = path.read_bytes(), 8, b""
    while at < len(data):
        (size,) = struct.unpack(">I", data[at:at + 4])
        if data[at + 4:at + 8] == b"IDAT":
            body += data[at + 8:at + 8 + size]
        at += size + 12
    return zlib.decompress(body)


def private_bytes(pid):
    """Pages that only this process has, in bytes; 0 when it has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


class ProcessMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = pathlib.Path(cls.folder.name) / "f32.safetensors"
        cls.out = pathlib.Path(cls.folder.name) / "out.png"
        widened(DEMO, cls.model)
        cls.size = cls.model.stat().st_size
        cls.request = ["--model", cls.model, "--prompt", "a red apple", "--seed", "7", "--steps", "2", "--threads", "1"]
        plan = json.loads(subprocess.run([SLUICE, "plan", *cls.request, "--tier", "disk", "--json"], capture_output=True, check=True).stdout)
        cls.smallest, cls.full = plan["smallest_budget"], plan["full_budget"]
        cls.largest_image = max(block["weights"] for stage in plan["stages"] for block in stage["blocks"])
        cls.images = plan["model_bytes"]
        code, _, message = cls.run_sluice("--tier", "disk")
        assert code == 0, message
        cls.expected = pixels(cls.out)

    @classmethod
    def run_sluice(cls, *more, limit=None):
        """Exit code, most private bytes seen, what was said on standard error. Negative codes: a signal."""
        cls.out.unlink(missing_ok=True)
        confine = (lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))) if limit else None
        command = [str(part) for part in (SLUICE, "generate", *cls.request, *more, "--output", cls.out)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=confine) as child:
            peak = 0
            while child.poll() is None:
                peak = max(peak, private_bytes(child.pid))
                time.sleep(PEAK_EVERY_S)
            return child.returncode, peak, child.stderr.read().decode()

    def data_limit(self, budget, staging):
        return budget + LIBRARIES + HEAP + LINK_STACK + staging

    def private_limit(self, budget, staging):
        return budget + LIBRARIES + HEAP + CODE + staging

    def check_holds(self, budget, staging, *more):
        limit = self.data_limit(budget, staging)
        code, peak, message = self.run_sluice("--device-budget", budget, *more, limit=limit)
        self.assertEqual(code, 0, message)
        self.assertEqual(pixels(self.out), self.expected)
        print(f"budget {budget}, data limit {limit}, private bytes at most {peak} of {self.private_limit(budget, staging)}")
        # A peak below the arena would mean that nothing was seen.
        self.assertGreater(peak, budget // 2)
        self.assertLessEqual(peak, self.private_limit(budget, staging))

    def test_read_at_each_use(self):
        for budget in (self.smallest, (self.smallest + self.full) // 2):
            with self.subTest(budget=budget):
                self.check_holds(budget, self.largest_image, "--tier", "disk")

    def test_kept_in_host_memory_as_far_as_the_host_budget_goes(self):
        for host in (self.largest_image + 2 * MIB, self.images // 4):
            with self.subTest(host=host):
                self.check_holds(self.smallest, host, "--tier", "read", "--host-budget", host)

    def test_allowance_is_small_beside_the_model(self):
        self.assertLess(self.data_limit(0, self.largest_image), self.size // 2)
        self.assertLess(self.data_limit(self.smallest, self.largest_image), self.size * 2 // 3)

    def check_refused(self, result):
        code, _, message = result
        self.assertIn(code, (3, 5), message)
        self.assertGreaterEqual(len(message.strip().splitlines()), 2, message)
        self.assertFalse(self.out.exists())

    def test_limit_bites_where_the_model_is_kept(self):
        limit = self.data_limit(self.smallest, self.largest_image)
        self.check_refused(self.run_sluice("--device-budget", self.smallest, "--tier", "read", limit=limit))

    def test_limit_bites_where_the_device_holds_the_model(self):
        limit = self.data_limit(self.full, self.largest_image) - self.size
        self.check_refused(self.run_sluice("--device-budget", self.full, "--tier", "disk", limit=limit))

    def test_no_limit_crashes(self):
        enough = self.data_limit(self.smallest, self.largest_image)
        for part in range(2, 17):
            with self.subTest(limit=enough * part // 16):
                result = self.run_sluice("--device-budget", self.smallest, "--tier", "disk", limit=enough * part // 16)
                if result[0] != 0:
                    self.check_refused(result)


if __name__ == "__main__":
    if not pathlib.Path("/proc/self/smaps_rollup").exists():
        print("no /proc/PID/smaps_rollup here: nothing to prove it with\n0 passed, 0 failed")
        sys.exit(0)
    outcome = unittest.TextTestRunner(verbosity=1).run(unittest.defaultTestLoader.loadTestsFromTestCase(ProcessMemory))
    failed = len(outcome.failures) + len(outcome.errors)
    print(f"{outcome.testsRun - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
