# Atrium's everyday commands; `make help` lists them.

VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
CLUSTER ?= instance/cluster
# The tests: a database of those that run in process, parts of them, and how many at once.
DB ?= sqlite
T ?=
TEST_WORKERS ?= auto
# Tests of processes wait for them a third of their time.
SYSTEM_WORKERS ?= $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )))
# Marks of tests that `make test` leaves out.
LEFT_OUT ?= slow or timing or long
SERVICE_BASE_URL ?= http://127.0.0.1:$(PORT)
export PORT SERVICE_BASE_URL

# The newest supported Python that really runs here: a version manager may
# put names on PATH that only print an error.
PYTHON ?= $(shell for name in python3.14 python3.13 python3.12 python3.11 python3; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$name" && break; done)

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes
# Extras stay, since pip 23 takes the newest `package[extra]` where only `package` is pinned.
UV_COMPILE := UV_CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/uv pip compile --quiet \
	--no-strip-extras --universal --python-version 3.11 --generate-hashes \
	--no-config --no-emit-index-url --no-emit-find-links $(LOCK_ARGS)

# Without the packages of requirements.txt, which it includes. Where a package is pinned with an extra,
# it is pinned without, too: pip 23 takes the newest one for whoever needs no extra.
define lock_beside
$(UV_COMPILE) requirements-$(1).in -o requirements-$(1).txt \
		$$(sed -n 's/^\([A-Za-z0-9._-]*\)\(\[.*\]\)\?==.*/--no-emit-package \1/p' requirements.txt)
	@sed -i -e '/^# The following packages were excluded/,$$d' \
		-e '0,/^[^#]/s//-r requirements.txt\n&/' \
		-e '/^[^# ]*\[.*\]==/{:more;/\\$$/{N;bmore};h;s/\[[^]]*\]==/==/;G}' requirements-$(1).txt
endef

PYTEST := $(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal
INSTALL := @$(BIN)/python -m tests.services install

.DEFAULT_GOAL := help
.PHONY: help run test in-process test-all coverage system browser timing slow citus faults clean lint lock translations description \
	vulnerabilities cluster

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]*:.*## / { print $$1 "\t" $$2 }' $(firstword $(MAKEFILE_LIST)) | expand -t 8

# honcho prints where it is interrupted, which a buffer that it is just filling would not let it.
run: export PYTHONUNBUFFERED := 1
run: $(VENV)/.runtime ## Set the application up and serve it on PORT (8000)
	@bin/atrium setup
	@PATH="$(CURDIR)/$(BIN):$$PATH"; export PATH; exec honcho start -p $(PORT) web worker

# The programs that tests start should not compile the application anew each time.
test in-process test-all coverage system browser timing slow citus faults: export PYTHONDONTWRITEBYTECODE :=
test in-process: export TEST_DATABASE := $(DB)

ifdef T
test: $(VENV)/.dev
	$(if $(filter-out sqlite,$(DB)),$(INSTALL) databases)
	$(BIN)/pytest $(T)
else
test: lint in-process ## Lint, run what needs no other process (DB=postgresql: on that; T=tests/records: a part)
endif

in-process: $(VENV)/.dev
	$(if $(filter-out sqlite,$(DB)),$(INSTALL) databases)
	$(PYTEST) --ignore=tests/system --ignore=tests/browser -m "not ($(LEFT_OUT))" $(ARGS)

test-all: export LEFT_OUT := slow or timing
test-all: lint ## Run all that CI runs
	TEST_BUDGET=1.5 $(MAKE) in-process ARGS="$(COVER)"
	$(if $(COVER),test ! -s $(TEST_OVER_BUDGET) || TEST_BUDGET=1.5 TEST_OVER_BUDGET= $(PYTEST) -m "" @$(TEST_OVER_BUDGET))
	TEST_SHORT=1 $(MAKE) in-process DB=postgresql ARGS="$(COVER)"
	$(MAKE) system browser ARGS="$(COVER)"
	$(MAKE) timing

# Each part adds to what the parts before it have covered. Coverage can double the time of a test: those
# that are over their budget then run again without it.
coverage: export TEST_OVER_BUDGET := .pytest_cache/over-budget
coverage: ## Run test-all with coverage, and fail below the floor of setup.cfg
	@rm -f .coverage && mkdir -p .pytest_cache && : > $(TEST_OVER_BUDGET)
	$(MAKE) test-all COVER="--cov --cov-append --cov-report= --cov-fail-under=0"
	$(BIN)/coverage report

system: $(VENV)/.dev ## Run the tests of processes, servers and kills
	$(INSTALL) databases system
	$(PYTEST) -n $(SYSTEM_WORKERS) -m "not slow and not timing" tests/system $(ARGS)

browser: $(VENV)/.dev ## Run the tests in a browser
	$(INSTALL) databases browser
	$(PYTEST) -m "not slow and not timing" tests/browser $(ARGS)

timing: export TEST_DATABASE := both
timing: export TEST_SHORT := 1
timing: $(VENV)/.dev ## Run the tests that measure time, one after the other
	$(INSTALL) databases system
	$(BIN)/pytest -m "timing and not slow" \
		$$(grep -rl --include="*.py" --exclude-dir=node_modules "mark\.timing" tests)

slow: export TEST_DATABASE := both
slow: $(VENV)/.dev ## Run the long forms of tests, and what runs nowhere else
	$(INSTALL) databases system browser slow
	$(BIN)/pytest -m slow

# CITUS_BIN: the folder of PostgreSQL's programs, with the extension citus installed for them.
CITUS_FOLDER ?= $(CURDIR)/instance/citus
CITUS_TESTS ?= tests/records tests/collections tests/workflows tests/webhooks tests/audit tests/accounts \
	tests/auth tests/feed tests/test_idempotency.py tests/test_jobs.py tests/rules_enforcement \
	tests/realtime tests/bundle tests/console tests/sso tests/test_sharded_statements.py \
	tests/scim tests/manifest tests/retention tests/security tests/files tests/usage tests/domains \
	tests/test_metrics.py tests/test_doctor.py tests/system/test_isolation_check.py tests/test_tenancy.py \
	tests/test_transactions.py tests/test_commands.py tests/test_backups.py tests/test_scheduled_backups.py
# They stop nodes that all others need.
CITUS_ALONE ?= tests/system/test_citus_nodes.py
citus: export TEST_DATABASE := postgresql
citus: $(VENV)/.dev ## Run tests on a Citus cluster (CITUS_BIN=/folder/of/postgres/with/citus)
	$(INSTALL) databases
	@CITUS_BIN="$(CITUS_BIN)" deploy/citus/nodes.sh start "$(CITUS_FOLDER)"
	@nodes="$$(deploy/citus/nodes.sh urls)"; export CITUS_BIN="$(CITUS_BIN)" \
		TEST_CITUS_NODES="$$nodes" TEST_POSTGRES_URL="$${nodes%% *}" TEST_CITUS_FOLDER="$(CITUS_FOLDER)"; \
	$(PYTEST) -k "postgresql and not plan and not by_an_index" \
		$(CITUS_TESTS) $(wildcard $(CITUS_TESTS:tests/%=tests/system/%)) \
	&& $(BIN)/pytest -k "postgresql" $(CITUS_ALONE); result=$$?; \
	deploy/citus/nodes.sh stop "$(CITUS_FOLDER)"; exit $$result

faults: $(VENV)/.dev ## Kill, cut and restart everything under load, 200 times
	$(INSTALL) databases system
	$(BIN)/pytest -m slow tests/system/webhooks/test_faults.py tests/system/workflows/test_faults.py

cluster: $(VENV)/.runtime ## Start several machines on this one, in the folder CLUSTER (docs/scaling.md)
	$(BIN)/python -m deploy.cluster $(CLUSTER)

lint: $(VENV)/.dev ## Check style, types and workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy app
	$(BIN)/zizmor --offline --quiet .github

# pip-audit in an environment of its own; without the resolver, as all versions are pinned by hash.
vulnerabilities: ## Look for known vulnerabilities of the pinned packages (asks PyPI)
	pipx run --spec pip-audit==2.10.1 pip-audit --strict --disable-pip --require-hashes \
		-r requirements.txt -r requirements-otel.txt -r requirements-dev.txt

lock: $(VENV)/.dev ## Recompile the lock files (LOCK_ARGS=--upgrade moves versions)
	$(UV_COMPILE) requirements.in -o requirements.txt
	$(call lock_beside,otel)
	$(call lock_beside,dev)

translations: $(VENV)/.dev ## Write new texts into the catalogs of app/translations
	@$(BIN)/python -m tests.translations

description: $(VENV)/.dev ## Write the API description that the clients are built from
	@$(BIN)/python -m clients.description

clean: ## Remove the virtualenv and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(check_python)
	@$(ensure_ensurepip)
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.runtime: requirements.txt $(VENV)/.created
	$(PIP_INSTALL) -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt requirements.txt $(VENV)/.created
	$(PIP_INSTALL) -r requirements-dev.txt
	@touch $(VENV)/.runtime $@

define check_python
if ! $(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	echo 'Atrium needs Python 3.11 or newer, and found none. Install one,' >&2; \
	echo 'or name it: make PYTHON=/path/to/python3 ...' >&2; \
	exit 1; \
fi
endef

# Debian and Ubuntu ship Python without ensurepip, which venv needs.
define ensure_ensurepip
if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	package="$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; \
	echo "Installing $$package, which $(PYTHON) -m venv needs"; \
	if [ "$$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi; \
	if ! { $$sudo apt-get update -q && $$sudo apt-get install -q -y --no-install-recommends "$$package"; }; then \
		echo "$(PYTHON) cannot create a virtualenv and $$package could not be installed." >&2; \
		echo "Install it as an administrator (apt-get install $$package), then try again." >&2; \
		exit 1; \
	fi; \
fi
endef
