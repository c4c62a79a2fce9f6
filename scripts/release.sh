#!/bin/sh
# Builds a wheel and a source distribution into dist/ and checks them: their metadata, their content, and the demo, run
# from each of them in a fresh virtual environment outside the checkout.
# $1 is a Python with the packages build and twine.
set -eu

python=$1
cd "$(dirname "$0")/.."
if [ -n "$(git status --porcelain)" ]; then
    echo "The checkout has changes that are not committed. A release is built from a commit: commit or remove them." >&2
    exit 1
fi

rm -rf dist
"$python" -m build --outdir dist .
"$python" -m twine check --strict dist/*

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dist=$PWD/dist
mkdir "$work/source"
tar -xzf "$dist"/*.tar.gz -C "$work/source" --strip-components 1
commit=$(git rev-parse --short HEAD)
version=$("$python" -c 'import sys, tomllib; print(tomllib.load(open(sys.argv[1], "rb"))["project"]["version"])' pyproject.toml)

# The checkout must not help: leave its directory, and unset the variables of an activated environment.
cd "$work"
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON SPARK_HOME || true
for artifact in "$dist"/*.whl "$dist"/*.tar.gz; do
    name=$(basename "$artifact")
    echo "== $name"
    "$python" -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "${artifact}[demo]"
    installed=$("$work/venv/bin/python" -c 'import bk_spark; print(bk_spark.__version__, bk_spark.__file__)')
    case "$installed" in
    "$version $work/venv/"*) ;;
    *)
        echo "$name: expected version $version in $work/venv, found $installed" >&2
        exit 1
        ;;
    esac
    "$work/venv/bin/bkctl" --version
    "$work/venv/bin/bookie-server" --help >/dev/null
    mkdir -p "$work/demo/examples"
    cp source/examples/demo.py demo/examples/
    "$work/venv/bin/python" demo/examples/demo.py
    rm -rf "$work/venv" "$work/demo"
done

echo "Built of commit $commit and checked:"
ls -l "$dist"
