#!/bin/sh
# Looks for a Chromium without a window, which the tests of the cluster's page need. Installs it as root on Debian.
# Otherwise says what to install: without it these tests are skipped.
set -eu

for name in chromium-headless-shell chromium chromium-browser google-chrome-stable google-chrome; do
    command -v "$name" >/dev/null && exit 0
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "missing: Chromium - installing it with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2 || true
    for package in chromium-headless-shell chromium; do
        # The first of them exists on newer releases of Debian only, and is smaller.
        apt-get install -y -qq --no-install-recommends "$package" >&2 && exit 0
    done
fi
echo "No Chromium: the tests of the cluster's page are skipped. Install chromium." >&2
