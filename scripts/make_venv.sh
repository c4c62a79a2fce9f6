#!/bin/sh
# Creates a virtual environment in directory $1 with PYTHON, or else a Python 3.11 or newer that is found, unless it
# already has a usable one.
set -eu

directory=$1
usable='import sys; sys.exit(sys.version_info < (3, 11))'

if [ -x "$directory/bin/python" ] && "$directory/bin/python" -c "$usable" 2>/dev/null &&
    "$directory/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi

candidates=${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}
# Take the first candidate that runs and is new enough. A name on PATH may not run (pyenv's shims).
python=
for candidate in $candidates; do
    if "$candidate" -c "$usable" >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "No Python 3.11 or newer found (looked for $candidates)." >&2
    echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2
    exit 1
fi

# Debian ships venv without ensurepip, which is in a separate package.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $package with apt-get" >&2
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >&2
        apt-get install -y -qq --no-install-recommends "$package" >&2
    else
        echo "$python cannot make virtual environments: install its venv module" >&2
        echo "  (Debian, Ubuntu: sudo apt-get install $package)" >&2
        exit 1
    fi
fi

echo "making $directory with $("$python" --version) ($python)" >&2
"$python" -m venv --clear "$directory"
