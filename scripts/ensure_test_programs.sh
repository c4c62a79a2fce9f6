#!/bin/sh
# Looks for what only some tests need: a Chromium without a window, for those of the cluster's page, zsh, for one of the
# completion of bkctl's commands, and promtool, for those of the alert rules. Installs what is missing as root on Debian
# or Ubuntu, promtool into directory $1. Otherwise says what to install: without it these tests are skipped, or fail
# with CI=true.
set -eu

found() {
    for name in "$@"; do
        command -v "$name" >/dev/null && return 0
    done
    return 1
}

updated=no
# Install the first of these packages that exists.
install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    echo "missing: $1 - installing it with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    [ "$updated" = yes ] || apt-get update -qq >&2 || true
    updated=yes
    for package in "$@"; do
        apt-get install -y -qq --no-install-recommends "$package" >&2 && return 0
    done
    return 1
}

# The first package exists on newer releases of Debian only, and is smaller.
found chromium-headless-shell chromium chromium-browser google-chrome-stable google-chrome ||
    install chromium-headless-shell chromium ||
    echo "No Chromium: the tests of the cluster's page cannot run. Install chromium." >&2
found zsh || install zsh || echo "No zsh: the test of its completion cannot run. Install zsh." >&2

# The package would also start a Prometheus. Only its promtool is wanted, beside the environment's programs.
extract_promtool() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -d "$bin" ] || return 1
    echo "missing: promtool - extracting it from the package prometheus" >&2
    [ "$updated" = yes ] || apt-get update -qq >&2 || true
    directory=$(mktemp -d)
    (cd "$directory" && apt-get download -qq prometheus >&2 && dpkg -x prometheus_*.deb . &&
        cp usr/bin/promtool "$bin/promtool")
    found=$?
    rm -rf "$directory"
    return $found
}

bin=$(cd "$1" && pwd)
found promtool "$bin/promtool" || extract_promtool ||
    echo "No promtool: the tests of the alert rules cannot run. Install prometheus." >&2
