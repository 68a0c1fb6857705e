# `make labs` and `make test` install into .venv on first use; whatever is up to date is not done again.

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))
HANDOUTS := $(patsubst notebooks/%.ipynb,handouts/%.html,$(NOTEBOOKS))
STAFF := $(patsubst notebooks/%.ipynb,handouts-staff/%.staff.html,$(NOTEBOOKS))
COURSE := $(wildcard labs_utils/*.py labs_utils/*/*.py labs_utils/*/*/*.py labs_utils/pages/template/* data/*.csv data/*/*)

# Compilers' helpers such as ninja are looked for on PATH, where an environment that isn't activated doesn't put them.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: labs staff test check lint lab
.DELETE_ON_ERROR:

labs: $(HANDOUTS)

# The same with the exercises filled in: for those who teach.
staff: $(STAFF)

handouts/%.html: notebooks/%.ipynb $(COURSE) $(INSTALLED)
	@$(PYTHON) -m labs_utils.cli handouts $< --out handouts

handouts-staff/%.staff.html: notebooks/%.ipynb $(COURSE) $(wildcard solutions/*.py) $(INSTALLED)
	@$(PYTHON) -m labs_utils.cli handouts $< --staff --out handouts-staff

# A file's tests stay on one worker: they share what takes long, such as a launch. Files keep conftest's order.
test: lint
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --nbmake --nbmake-timeout=600 tests notebooks

# The quick part of `test`: no notebook, nothing slow.
check: lint
	$(PYTHON) -m pytest -n 2 -p no:nbmake -m "not slow"

lint: $(INSTALLED)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

lab: $(INSTALLED)
	$(PYTHON) -m jupyter lab --notebook-dir=notebooks

# Each candidate is run, not only found: some systems have a `python3.12` that only says where to get one. An environment
# keeps its Python. The stamp is written last, so that an interrupted installation is taken up again.
$(INSTALLED): requirements.txt pyproject.toml
	@python=$$(for each in $(PYTHON) python3.12 python3.11 python3; do \
	    $$each -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; \
	done); \
	if [ -z "$$python" ]; then \
	    echo "This course needs Python 3.11 or newer with its venv module (on Debian and Ubuntu: python3-venv)." >&2; exit 1; \
	fi; \
	echo "Installing into $(VENV): about 2 minutes and 3 GB (4 minutes and 6 GB where torch comes with CUDA)."; \
	$$python -m venv $(VENV)
	$(PYTHON) -m pip install -r requirements.txt
	$(PYTHON) -m pip install --no-deps --no-build-isolation -e .
	@touch $@
