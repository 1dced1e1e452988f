# Every target sets up what it needs in .venv from a bare Python 3.11 with pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: help setup demo test test-install test-page test-flower flower-demo test-slow lint docs bench pages reproduce fuzz clean
help:
	@echo "make demo       set up, then run the main job on the default data"
	@echo "make test       set up, then run the tests (six minutes on 2 cores)"
	@echo "make test-install  the wheel in fresh environments (newest, with Flower, lowest; the core on every Python found), every command (minutes)"
	@echo "make test-page  pages, and the site if it is built, in headless Chromium (skips without one; REPORT=folder for a page of yours)"
	@echo "make test-flower  end to end with a real SuperLink and SuperNodes on loopback (ten minutes on 2 busy cores)"
	@echo "make flower-demo  MNIST over Flower, with and without cepam, insecure and with TLS (FLOWER_DEMO=--help)"
	@echo "make test-slow  the longer statistical tests"
	@echo "make lint       ruff, mypy --strict, import-linter"
	@echo "make docs       the documentation site in site/, strictly: a broken link fails, and so do too many words"
	@echo "make bench      measures rate, speed, accounting and training, into bench/results/ (an hour)"
	@echo "make pages      writes the tables of README and of docs/benchmarks/index.md from the stored results"
	@echo "make reproduce  the paper's tables, figures and bounds with a verdict on each claim (REPRODUCE=--quick for a look; its docs: cepam reproduce document)"
	@echo "make fuzz       ten minutes of mutated bytes for every parser (FUZZ_SECONDS=60 for a short one)"

setup: $(STAMP)
$(STAMP): pyproject.toml studies/paper/pyproject.toml studies/peers/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "setuptools>=77,<85"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[torch,flower-simulation,flare,dp-accounting,plots,tables,tensorboard,wandb,mlflow,lora,language,dev]" -e studies/paper -e studies/peers
	touch $@

demo: $(STAMP)
	$(BIN)/cepam compare --preset private --schemes fl+gaussian,cepam-gaussian --seeds 1 --name demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow and not flower"

# Needs no $(VENV): it makes its own environments. PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL may name CPU wheels of PyTorch.
test-install:
	$(PYTHON) tools/test_install.py $(TEST_INSTALL)

# A report and a site that are there are looked at too.
REPORT ?= $(if $(wildcard report/index.html),report)
test-page: $(STAMP)
	$(if $(REPORT),CEPAM_REPORT=$(REPORT)) $(BIN)/python -m pytest -rs studies/paper/paper_tests/test_browser.py tests/user/test_browser.py

# Most of the time Flower's processes sleep between two looks: three tests at a time, the longest first.
LONGEST := tests/flower/secure_aggregation/test_loopback.py tests/flower/test_population.py
test-flower: $(STAMP)
	$(BIN)/python -m pytest -n 3 --maxschedchunk 1 -m flower $(LONGEST) tests/flower tests/flare

flower-demo: $(STAMP)
	$(BIN)/python tools/flower_demo.py $(FLOWER_DEMO)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	$(BIN)/python tools/site_words.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[docs]"
	touch $@

bench: $(STAMP)
	$(BIN)/python bench/gradients.py --if-missing
	$(BIN)/python bench/speed.py
	$(BIN)/python bench/measure_rate.py 24 Z1 E8 auto
	$(BIN)/python bench/floors.py
	$(BIN)/python bench/rate_plot.py
	$(BIN)/python bench/rate_plot.py --sizes
	$(BIN)/python bench/privacy.py
	$(BIN)/python bench/accounting.py
	$(BIN)/python bench/secure.py 1000000 30
	$(BIN)/python bench/engine.py --suite main paper --seeds 1

# Stored tables that are written from results; a test checks that they are current. The site writes all other pages.
pages: $(STAMP)
	$(BIN)/python tools/make_benchmarks.py

reproduce: $(STAMP)
	$(BIN)/cepam reproduce all $(REPRODUCE)

fuzz: $(STAMP)
	$(BIN)/python tools/fuzz.py

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
