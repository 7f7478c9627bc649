#!/bin/bash
# Puts SwiftShader, a CPU Vulkan driver, into a folder of its own: it comes inside Debian's chromium-common package,
# which is unpacked, not installed. `PREFIX/run PROGRAM…` runs a program with that driver. Needs libvulkan1 installed.
#
#   tools/mk-swiftshader.sh PREFIX
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,5s/^# \?//p' "$0"; exit 2; }
command -v apt-get dpkg >/dev/null || { echo "mk-swiftshader: needs apt-get and dpkg (Debian)" >&2; exit 1; }
prefix=$(realpath -m "$1")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get -o Acquire::Retries=3 -o APT::Sandbox::User="$(id -un)" -qq download chromium-common
dpkg -x chromium-common_*.deb all
from=all/usr/lib/chromium
[ -e $from/libvk_swiftshader.so ] || { echo "mk-swiftshader: this chromium-common holds no SwiftShader" >&2; exit 1; }
mkdir -p "$prefix"
cp $from/libvk_swiftshader.so $from/vk_swiftshader_icd.json "$prefix/"
cp all/usr/share/doc/chromium-common/copyright "$prefix/" 2>/dev/null || true
cat > run <<R
#!/bin/sh
# Runs a program with this folder's SwiftShader.
export VK_DRIVER_FILES='$prefix/vk_swiftshader_icd.json' VK_ICD_FILENAMES='$prefix/vk_swiftshader_icd.json'
exec "\$@"
R
chmod +x run
mv run "$prefix/run"   # last: its presence says that the folder is complete
