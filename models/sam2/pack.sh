#!/bin/bash
# Packs the folder that references.py has written: pack.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
find . -type f | LC_ALL=C sort | tar --no-recursion --owner=0 --group=0 --numeric-owner --mtime=2026-01-01 -cf - -T - |
    zstd -19 --long=27 -T1 -qfo "$here/twin.tar.zst"
ls -l "$here/twin.tar.zst"
