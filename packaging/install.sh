#!/bin/sh
# Installs orla @VERSION@ for this user: downloads the archive for this machine, verifies its checksum, and unpacks it.
#
#   ORLA_BASE_URL  where the archives are [default: @BASE_URL@]
#   PREFIX         where to install: bin, share/man and completions below it [default: ~/.local]
#
# Nothing is installed unless the checksum in SHA256SUMS is that of the archive.
set -eu

version=@VERSION@
base_url=${ORLA_BASE_URL:-@BASE_URL@}
prefix=${PREFIX:-${HOME:?HOME is not set: set PREFIX}/.local}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

target() {
    [ "$(uname -s)" = Linux ] || fail "there is no binary for $(uname -s): build orla from its source"
    case $(uname -m) in
        x86_64 | amd64) echo x86_64-unknown-linux-musl ;;
        aarch64 | arm64) echo aarch64-unknown-linux-musl ;;
        *) fail "there is no binary for $(uname -m): build orla from its source" ;;
    esac
}

# download URL FILE
download() {
    if has curl; then
        case $1 in
            https://*) curl --proto '=https' --fail --silent --show-error --location --output "$2" "$1" ;;
            *) curl --fail --silent --show-error --location --output "$2" "$1" ;;
        esac
    elif has wget; then
        wget -q -O "$2" "$1"
    else
        fail "neither curl nor wget is installed"
    fi || fail "$1 cannot be downloaded"
}

sum() {
    if has sha256sum; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif has shasum; then
        shasum -a 256 "$1" | cut -d ' ' -f 1
    else
        fail "neither sha256sum nor shasum is installed, so the checksum cannot be verified"
    fi
}

# Everything is in a function, so that a script that was cut off does nothing.
main() {
    target=$(target)
    name=orla-$version-$target
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM

    download "$base_url/SHA256SUMS" "$work/SHA256SUMS"
    expected=$(awk -v name="$name.tar.gz" '$2 == name { print $1 }' "$work/SHA256SUMS")
    [ -n "$expected" ] || fail "$base_url/SHA256SUMS has no checksum of $name.tar.gz"
    download "$base_url/$name.tar.gz" "$work/$name.tar.gz"
    actual=$(sum "$work/$name.tar.gz")
    [ "$actual" = "$expected" ] ||
        fail "$name.tar.gz has the checksum $actual, but $expected was expected: nothing is installed"

    tar -xzf "$work/$name.tar.gz" -C "$work"
    "$work/$name/orla" --version >/dev/null || fail "the program does not run on this machine"
    mkdir -p "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
        "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
    cp "$work/$name"/man/*.1 "$prefix/share/man/man1/"
    cp "$work/$name/completions/orla.bash" "$prefix/share/bash-completion/completions/orla"
    cp "$work/$name/completions/_orla" "$prefix/share/zsh/site-functions/_orla"
    cp "$work/$name/completions/orla.fish" "$prefix/share/fish/vendor_completions.d/orla.fish"
    # A running program cannot be written to, but its name can be given to another file.
    cp "$work/$name/orla" "$prefix/bin/.orla.new.$$"
    chmod 755 "$prefix/bin/.orla.new.$$"
    mv -f "$prefix/bin/.orla.new.$$" "$prefix/bin/orla"

    printf 'installed %s\n' "$prefix/bin/orla"
    case :$PATH: in
        *:"$prefix/bin":*) ;;
        *) printf '%s is not in PATH: add it\n' "$prefix/bin" ;;
    esac
}

main
