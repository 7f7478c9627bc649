#!/bin/bash
# pack-release.sh BINARY TARGET DIR: writes DIR/jvc-VERSION-TARGET.tar.gz (.zip for Windows) and its SHA-256, once the binary has compiled
# a program and the crate that came out has been built. With TAG in the environment, it must be that of the version.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 3 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
binary=$1 target=$2 out=$3
# Windows' bash finds NAME.exe as NAME; what is copied below should be called by its whole name.
[ ! -e "$binary.exe" ] || binary=$binary.exe

version=$("$binary" --version | tr -d '\r'); version=${version#jvc }
[ -z "${TAG:-}" ] || [ "$TAG" = "v$version" ] || { echo "tag $TAG, but the version is $version" >&2; exit 1; }

scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
"$binary" compile models/goldens/mlp.pt2 --device generic --c-api --out "$scratch/mlp"
cargo build --quiet --manifest-path "$scratch/mlp/Cargo.toml" --features c-api --target-dir "$scratch/target"

name=jvc-$version-$target
mkdir -p "$scratch/$name" "$out"
cp "$binary" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$scratch/$name/"
cp -r docs "$scratch/$name/docs"
case $target in
    *windows*) archive=$name.zip; (cd "$scratch" && 7z a -bso0 "$archive" "$name") ;;
    *) archive=$name.tar.gz; tar -C "$scratch" -czf "$scratch/$archive" "$name" ;;
esac
mv "$scratch/$archive" "$out/"
cd "$out"
if command -v sha256sum >/dev/null; then sha256sum "$archive"; else shasum -a 256 "$archive"; fi > "$archive.sha256"
cat "$archive.sha256"
