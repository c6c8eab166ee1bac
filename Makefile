# sluice: set up, build, test. `make help` lists the targets.
#   CUDA=1                          build ggml from source with its CUDA backend, into build/cuda
#   SLUICE_GGML=system|wheel|source where ggml comes from (default: the first of these that is there)
SHELL := /bin/bash
.DEFAULT_GOAL := help
PRESET := release
ifeq ($(CUDA),1)
PRESET := cuda
override SLUICE_GGML := source
endif
SLUICE_GGML ?= auto
export SLUICE_GGML
ORIGIN := -DSLUICE_GGML=$(SLUICE_GGML)
B := build/$(PRESET)
BUILD = cmake --preset $(1) $(ORIGIN) >build/$(1).log && cmake --build build/$(1) $(2) || { tail -n 20 build/$(1).log; exit 1; }

.PHONY: help setup build test devices demo bench tsan asan fuzz format tidy clean

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

setup: ## installs what the build needs (Debian 12 and 13 as root; says what is missing elsewhere)
	@tools/setup

build: setup ## builds build/release/sluice
	@mkdir -p build && $(call BUILD,$(PRESET))

test: ## builds everything with and without sanitizers, runs every test and check
	@tools/setup test
	@python3 tools/run_tests.py --preset $(PRESET) --preset dev --preset tsan --checks $(ORIGIN)

devices: build ## runs golden cases and device tests on every device, in a Debian 13 root too (docs/devices.md)
	@tools/ci/device-matrix

demo: build ## makes a picture from the embedded model on a device smaller than the model
	@tools/demo $(B)

bench: setup ## measures; prints JSON lines
	@mkdir -p build && $(call BUILD,bench)
	@build/bench/sluice-bench core && build/bench/sluice-bench residency

asan: ## builds and tests with AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup
	@python3 tools/run_tests.py --preset dev $(ORIGIN)

tsan: ## builds and tests with ThreadSanitizer
	@tools/setup
	@python3 tools/run_tests.py --preset tsan $(ORIGIN)

fuzz: ## builds the fuzz programs with clang and runs each for FUZZ_SECONDS (default 60)
	@tools/setup fuzz
	@mkdir -p build && $(call BUILD,fuzz,--target fuzz_programs)
	@tools/ci/fuzz $(or $(FUZZ_SECONDS),60)

format: ## formats all sources
	@tools/setup test
	@python3 tools/ci/format.py

tidy: build ## runs clang-tidy over src/
	@tools/setup test
	@python3 tools/ci/tidy.py --build $(B)

clean: ## removes build/ (not the set-up)
	@rm -rf build
