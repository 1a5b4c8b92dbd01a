# Front door. Everything here is a short way to say what CMake, ctest and scripts/ do.

JOBS ?= $(shell nproc)
ARGS ?=
export JOBS

tool := build/release/bin/hyla

.DEFAULT_GOAL := help
.PHONY: help demo test build bench gpu-check gpu-status docs format tidy setup clean

help: ## Show this list
	@echo "hyla: inference kernels for hybrid linear attention models"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "On Debian and Ubuntu, missing packages are named and installed first."
	@echo "JOBS=n limits the parallel jobs; ARGS='...' goes to the tool in demo and bench."

demo: setup ## See it work: a small hybrid model is served, every token verified
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release --target hyla_cli --parallel $(JOBS)
	@$(tool) demo $(ARGS)

test: setup ## Build and test everything this machine can run (release, then sanitizers)
	@scripts/test.sh

build: setup ## Build the library, the tool, tests and examples into build/release
	@cmake --preset release
	@cmake --build --preset release --parallel $(JOBS)

bench: setup ## Measure on this machine (ARGS="PROBLEM..." or ARGS="--suite NAME")
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release --target hyla_cli --parallel $(JOBS)
	@$(tool) bench $(ARGS)

gpu-check: ## On a GPU machine: run the GPU tests, measure, write bench/results/<gpu>.json
	@scripts/gpu_check.sh

gpu-status: ## Say whether the GPU results belong to the kernels as they are now
	@python3 scripts/gpu_status.py

docs: ## Build the reference pages into build/docs
	@scripts/setup.sh docs
	@mkdir -p build/docs
	@doxygen docs/Doxyfile
	@echo "docs: build/docs/html/index.html"

format: setup ## Format the C, C++ and CUDA files
	@scripts/format.sh

tidy: ## Look for mistakes with clang-tidy (slow)
	@scripts/setup.sh tidy
	@cmake --preset release --log-level=WARNING >/dev/null
	@find src testing tools -name '*.cpp' -print0 2>/dev/null | \
	  xargs -0 -n 1 -P $(JOBS) clang-tidy -p build/release --quiet

setup: ## Install missing packages (does nothing when nothing is missing)
	@scripts/setup.sh

clean: ## Remove build/
	@rm -rf build
