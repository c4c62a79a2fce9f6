#!/bin/sh
# Checks for Java 17 or newer; with --build also for a JDK (javac) and Maven, which the interop tests need.
# Installs what is missing as root on Debian or Ubuntu. Otherwise prints what to install, and fails.
set -eu

oldest=17
build=no
[ "${1:-}" = --build ] && build=yes

# Print the major version of a java or javac program; nothing if it does not run.
major() {
    "$1" -version 2>&1 | sed -n -E -e 's/^(javac |.* version ")(1\.)?([0-9]+).*/\3/p' | head -n 1 || true
}

# Print the path of the program in use: from JAVA_HOME, else from PATH.
program() {
    if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/$1" ]; then echo "$JAVA_HOME/bin/$1"; else command -v "$1" || true; fi
}

new_enough() {
    found=$(program "$1")
    [ -n "$found" ] || return 1
    version=$(major "$found")
    [ -n "$version" ] && [ "$version" -ge "$oldest" ]
}

missing() {
    new_enough java || printf 'java '
    if [ "$build" = yes ]; then
        new_enough javac || printf 'javac '
        command -v mvn >/dev/null || printf 'mvn '
    fi
}

lacking=$(missing)
[ -z "$lacking" ] && exit 0

packages=
case " $lacking" in
*" java "* | *" javac "*)
    # Java 17 is known to work. Fall back to the distribution's default.
    kind=jre-headless
    [ "$build" = yes ] && kind=jdk-headless
    packages="openjdk-17-$kind"
    fallback="default-${kind}"
    ;;
esac
case " $lacking" in *" mvn "*) packages="$packages maven" ;; esac

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "missing: ${lacking}- installing $packages with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    # shellcheck disable=SC2086 # a list of packages
    apt-get install -y -qq --no-install-recommends $packages >&2 ||
        { [ -n "${fallback:-}" ] && apt-get install -y -qq --no-install-recommends \
            $(echo "$packages" | sed "s/openjdk-17-$kind/$fallback/") >&2; }
    lacking=$(missing)
    [ -z "$lacking" ] && exit 0
fi

{
    echo "missing or too old: $lacking"
    echo "Java $oldest or newer is needed$([ "$build" = yes ] && echo ' as a JDK (with javac), and Maven (mvn)'). Install it, for example:"
    echo "  Debian, Ubuntu:  sudo apt-get install openjdk-17-$([ "$build" = yes ] && echo 'jdk-headless maven' || echo jre-headless)"
    echo "  Fedora, RHEL:    sudo dnf install java-17-openjdk-$([ "$build" = yes ] && echo 'devel maven' || echo headless)"
    echo "  macOS:           brew install openjdk@17$([ "$build" = yes ] && echo ' maven')"
    echo "and set JAVA_HOME if it is not the java on PATH."
} >&2
exit 1
