# Sourced by the scripts beside it. Afterwards ROOT is the checkout and PYTHON an interpreter that has the project
# installed editable, with everything that pyproject.toml lists.
#
# In this order: the interpreter that OUTRIDER_PYTHON names; the active virtual environment, if nothing is lacking;
# ROOT/.venv, made when it is not there and brought up to date when pyproject.toml has changed.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
TORCH_VERSION="${OUTRIDER_TORCH_VERSION:-2.13.0}"

# One thread a process: the tests run in several processes, and small models gain nothing from more.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1

_say() { printf '%s\n' "$@" >&2; }

_is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Prints what is lacking; true when nothing is.
_satisfied() { _is_recent "$1" && "$1" "$ROOT/scripts/_satisfied.py" "$ROOT"; }

_base_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null 2>&1 && _is_recent "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  _say "No Python 3.11 or newer was found on PATH; install one, or name one that has the project with OUTRIDER_PYTHON."
  return 1
}

_stamp_of() { "$1" - "$ROOT/pyproject.toml" "$TORCH_VERSION" <<'PY'
import hashlib, pathlib, sys
print(hashlib.sha256(pathlib.Path(sys.argv[1]).read_bytes()).hexdigest(), sys.argv[2], *sys.version_info[:3])
PY
}

_make_venv() {
  local venv="$ROOT/.venv" base
  if [ ! -x "$venv/bin/python" ] || ! _is_recent "$venv/bin/python"; then
    base="$(_base_python)" || return 1
    _say "Making .venv with $base"
    # Some distributions ship Python without ensurepip; then the base's own pip fills the environment.
    "$base" -m venv --clear "$venv" >/dev/null 2>&1 || "$base" -m venv --clear --without-pip "$venv" || return 1
  fi
  local pip=("$venv/bin/python" -m pip)
  if ! "${pip[@]}" --version >/dev/null 2>&1; then
    base="$(_base_python)" || return 1
    pip=("$base" -m pip --python "$venv/bin/python")
    "${pip[@]}" --version >/dev/null 2>&1 || { _say "Neither .venv nor $base has pip; install it (python3-pip)."; return 1; }
  fi
  # torch first, in the version the project is tested with: a package index may offer it as a CPU build. Whatever
  # else satisfies pyproject.toml will do where that version cannot be had.
  if ! "$venv/bin/python" -c 'import torch' >/dev/null 2>&1; then
    "${pip[@]}" install -q "torch==$TORCH_VERSION" || {
      _say "torch $TORCH_VERSION cannot be had here; taking the newest that can."
      "${pip[@]}" install -q "torch>=2.9" || return 1
    }
  fi
  "${pip[@]}" install -q -e "$ROOT[dev]" || return 1
  # pyright runs on node; where the system has none, a package brings it.
  command -v node >/dev/null 2>&1 || "${pip[@]}" install -q "pyright[nodejs]" ||
    _say "No node on PATH and none from the package index: scripts/check will not be able to run pyright."
}

_find_python() {
  local venv="$ROOT/.venv" lacking
  if [ -n "${OUTRIDER_PYTHON:-}" ]; then
    PYTHON="$(command -v "$OUTRIDER_PYTHON")" || { _say "OUTRIDER_PYTHON=$OUTRIDER_PYTHON is no program."; return 1; }
    _is_recent "$PYTHON" || { _say "OUTRIDER_PYTHON=$OUTRIDER_PYTHON is older than Python 3.11."; return 1; }
    lacking="$(_satisfied "$PYTHON")" || {
      _say "OUTRIDER_PYTHON=$OUTRIDER_PYTHON lacks:" "$lacking" "Install it there, or unset OUTRIDER_PYTHON."
      return 1
    }
    return
  fi
  if [ -n "${VIRTUAL_ENV:-}" ] && [ -x "$VIRTUAL_ENV/bin/python" ] && [ "$VIRTUAL_ENV" != "$venv" ] &&
    _satisfied "$VIRTUAL_ENV/bin/python" >/dev/null; then
    PYTHON="$VIRTUAL_ENV/bin/python"
    return
  fi
  PYTHON="$venv/bin/python"
  local stamp="$venv/.outrider-stamp"
  if [ -x "$PYTHON" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(_stamp_of "$PYTHON")" ]; then
    return
  fi
  if [ ! -x "$PYTHON" ] || ! _satisfied "$PYTHON" >/dev/null; then
    _make_venv || { _say "The environment could not be made; see above."; return 1; }
    lacking="$(_satisfied "$PYTHON")" || { _say "The new environment lacks:" "$lacking"; return 1; }
  fi
  _stamp_of "$PYTHON" >"$stamp"
}

# Two scripts started at once must not both fill .venv.
_lock="${TMPDIR:-/tmp}/outrider-env-$(id -u)-$(printf '%s' "$ROOT" | cksum | cut -d' ' -f1).lock"
if command -v flock >/dev/null 2>&1; then
  exec 8>"$_lock"
  flock 8
  _find_python || exit 1
  exec 8>&-
else
  _find_python || exit 1
fi
export PYTHON
