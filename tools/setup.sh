# Set-up that `x` and the scripts models/NAME/try.sh share: packages, build tools, Vulkan drivers. Sourced at the root of the
# repository, with `drivers` and `logs` set to folders.

say() { printf '%s\n' "$*"; }
die() { printf 'x: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------------------------------------------- installing

# Installs packages that are missing, where this machine can do it, else says what to run.
need_packages() {
    local missing=() p
    for p in "$@"; do
        dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return
    local install=(apt-get install -y --no-install-recommends "${missing[@]}") sudo=()
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null && sudo=(sudo) || die "this needs packages; please run: sudo ${install[*]}"
    fi
    say "installing ${missing[*]}"
    { "${sudo[@]}" apt-get -qq update && DEBIAN_FRONTEND=noninteractive "${sudo[@]}" "${install[@]}"; } \
        > "$logs/apt.log" 2>&1 || { tail -5 "$logs/apt.log"; die "could not install ${missing[*]}"; }
}

# The programs that a build needs; on systems without apt they are only checked.
need_build_tools() {
    command -v cargo >/dev/null || die "Rust is missing: see https://rustup.rs"
    if command -v apt-get >/dev/null; then
        command -v cc >/dev/null || need_packages gcc libc6-dev
        command -v zstd >/dev/null || need_packages zstd
    fi
    command -v zstd >/dev/null || die "zstd is missing: please install it"
}

need_driver() { # lvp26 | apt | swiftshader
    [ -x "$drivers/$1/run" ] && return
    mkdir -p "$drivers"
    say "setting up the driver $1 in $drivers/$1"
    case $1 in
        lvp26) tools/mk-lvp26.sh "$drivers/lvp26" ;;
        swiftshader) need_packages libvulkan1; tools/mk-swiftshader.sh "$drivers/swiftshader" ;;
        apt)
            need_packages libvulkan1 mesa-vulkan-drivers vulkan-validationlayers
            local icd; icd=$(echo /usr/share/vulkan/icd.d/lvp_icd*.json)
            mkdir -p "$drivers/apt"
            printf '#!/bin/sh\n# Runs a program with the lavapipe of this system.\nexport VK_DRIVER_FILES=%s VK_ICD_FILENAMES=%s\nexec "$@"\n' \
                "$icd" "$icd" > "$drivers/apt/run.new"
            chmod +x "$drivers/apt/run.new"; mv "$drivers/apt/run.new" "$drivers/apt/run" ;;
    esac > "$logs/driver-$1.log" 2>&1 || { tail -5 "$logs/driver-$1.log"; die "could not set up the driver $1"; }
}

# ---------------------------------------------------------------------------------------------------- devices

# Finds a Vulkan device, or sets up a CPU driver; the words that run a program with it are in `run`. Instead of an old lavapipe of
# the system (those whose loops end after 65,535 iterations), which takes minutes where a newer one takes seconds, a newer one is
# set up where that can be done.
run=()
find_device() { # JVC
    local found=no
    if "$1" probe > "$logs/device.toml" 2> "$logs/probe.log"; then
        grep -q '^max_loop_iterations' "$logs/device.toml" || { tell_device; return; }
        found=old
    fi
    if [ ! -x "$drivers/lvp26/run" ]; then
        if [ $found = no ]; then say "this machine has no Vulkan device: setting up a CPU driver (about 70 MB, under a minute)"
        else say "the Vulkan driver of this system is an old lavapipe: setting up a newer one (about 70 MB, under a minute)"; fi
    fi
    if command -v apt-get >/dev/null && (need_driver lvp26); then run=("$drivers/lvp26/run")
    elif [ $found = old ]; then say "staying with the old one, which is slow"; tell_device; return
    elif command -v apt-get >/dev/null; then need_packages libvulkan1 mesa-vulkan-drivers
    else die "please install a Vulkan driver; Mesa's lavapipe needs no GPU (mesa-vulkan-drivers, vulkan-swrast)"; fi
    "${run[@]}" "$1" probe > "$logs/device.toml" || die "still no Vulkan device"
    tell_device
}

# Names the device that was found.
tell_device() { sed -n 's/^description = "\(.*\)"$/device: \1/p' "$logs/device.toml"; }

# timed NAME COMMAND…: runs a command and says how long it took; its output is shown only if it fails. On a terminal the last line of
# that output is shown while it runs, elsewhere a dot every ten seconds.
timed() {
    local name=$1 log start status=0 ticker; log=$logs/timed-${name//[^a-z]/-}.log; shift
    start=$(date +%s%N)
    printf '%-34s' "$name"
    : > "$log"
    tick "$name" "$log" & ticker=$!
    "$@" > "$log" 2>&1 || status=$?
    kill $ticker 2>/dev/null || true; wait $ticker 2>/dev/null || true
    [ -t 1 ] && printf '\r\033[K%-34s' "$name"
    [ $status = 0 ] || { say "FAILED"; tail -30 "$log"; die "whole log: $log"; }
    awk -v ns=$(($(date +%s%N) - start)) 'BEGIN { printf "%.1f s\n", ns / 1e9 }'
}

# tick NAME LOG: shows that something is going on, as long as this script lives.
tick() {
    local start=$SECONDS pause=10; [ -t 1 ] && pause=1
    while sleep $pause > /dev/null 2>&1 3>&- && kill -0 $$ 2>/dev/null; do
        if [ -t 1 ]; then printf '\r\033[K%-34s%s s  %.60s' "$1" $((SECONDS - start)) "$(tail -n 1 "$2" | tr -d '[:cntrl:]')"
        else printf .; fi
    done
}
