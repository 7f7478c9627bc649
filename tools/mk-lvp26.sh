#!/bin/bash
# Puts lavapipe of Mesa 26 (Debian 13 backports) with the C library, Vulkan loader and validation layer that it needs
# into a folder of its own; no package of the system is touched, no root needed. `PREFIX/run PROGRAM…` then runs a
# program built on this machine with that driver. Every package is checked by apt against Debian's archive keys.
#
#   tools/mk-lvp26.sh PREFIX
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,7s/^# \?//p' "$0"; exit 2; }
command -v apt-get dpkg >/dev/null || { echo "mk-lvp26: needs apt-get and dpkg (Debian or a relative)" >&2; exit 1; }
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keyring ] || { echo "mk-lvp26: no $keyring (apt-get install debian-archive-keyring)" >&2; exit 1; }
case $(dpkg --print-architecture) in
    amd64) triplet=x86_64-linux-gnu; loader=ld-linux-x86-64.so.2 ;;
    arm64) triplet=aarch64-linux-gnu; loader=ld-linux-aarch64.so.1 ;;
    *) echo "mk-lvp26: only amd64 and arm64" >&2; exit 1 ;;
esac

prefix=$(realpath -m "$1")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{parts,lists/partial,cache/archives/partial,debs}
# The mirror that this machine already uses; other systems than Debian have none that fits.
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }')
[ -n "$mirror" ] || { echo "mk-lvp26: apt has no Debian mirror on this machine" >&2; exit 1; }
cat > "$work/parts/trixie.sources" <<S
Types: deb
URIs: $mirror
Suites: trixie trixie-backports
Components: main
Signed-By: $keyring
S
own=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts" -o Dir::State::lists="$work/lists"
    -o Dir::Cache="$work/cache" -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Sandbox::User="$(id -un)")
apt-get "${own[@]}" -qq update
cd "$work/debs"
apt-get "${own[@]}" -qq download mesa-vulkan-drivers/trixie-backports
apt-get "${own[@]}" -qq download libvulkan1 vulkan-validationlayers spirv-tools libbsd0 libc6 libcap2 libdisplay-info2 \
    libdrm2 libedit2 libexpat1 libffi8 libgcc-s1 libllvm19 liblzma5 libmd0 libstdc++6 libtinfo6 libudev1 \
    libwayland-client0 libx11-6 libx11-xcb1 libxau6 libxcb-dri3-0 libxcb-present0 libxcb-randr0 libxcb-shm0 \
    libxcb-sync1 libxcb-xfixes0 libxcb1 libxdmcp6 libxml2 libxshmfence1 libz3-4 libzstd1 zlib1g

rm -rf "$prefix"; mkdir -p "$prefix/layers"
for deb in *.deb; do dpkg -x "$deb" "$prefix"; done
rm -rf "$prefix"/usr/share/{doc,man,locale,lintian,bug}
lib=$prefix/usr/lib/$triplet
find "$lib" -name 'libvulkan_*' ! -name 'libvulkan_lvp.so' -delete   # the GPU drivers of the same package
find "$lib" -name '*.a' -delete

# Manifests name their library by a relative path; here it must be absolute.
absolute() { sed "s#\"library_path\": *\"[^\"]*\"#\"library_path\": \"$lib/$1\"#" "$2"; }
absolute libvulkan_lvp.so "$prefix"/usr/share/vulkan/icd.d/lvp_icd*.json > "$prefix/lvp.json"
absolute libVkLayer_khronos_validation.so "$prefix"/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json \
    > "$prefix/layers/VkLayer_khronos_validation.json"

cat > "$work/run" <<R
#!/bin/sh
# Runs a program of this machine on this folder's C library, Vulkan loader and lavapipe.
export VK_DRIVER_FILES='$prefix/lvp.json' VK_ICD_FILENAMES='$prefix/lvp.json' VK_LAYER_PATH='$prefix/layers'
exec '$lib/$loader' --library-path '$lib' "\$@"
R
chmod +x "$work/run"
"$work/run" "$(type -P true)"   # the C library starts programs of this machine
mv "$work/run" "$prefix/run"                        # last: its presence says that the folder is complete
