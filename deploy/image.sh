#!/bin/sh
# usage: deploy/image.sh IMAGE VERSION ARCH...
# Builds IMAGE with buildah: an image for one ARCH, a manifest list for several.
# Builds of a commit are identical byte for byte: file times are that of the commit.
# BUILDAH is the command with its options.
set -eu
image=$1 version=$2
shift 2
cd "$(dirname "$0")/.."
go=${GO:-go} buildah=${BUILDAH:-buildah}
revision=$(git rev-parse HEAD 2>/dev/null || true)
time=$(git log -1 --format=%ct 2>/dev/null || echo 0)
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
build() { # build ARCH OPTION...
	arch=$1
	shift
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch "$go" build -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.version=$version" -o "$context/nodens" ./cmd/nodens
	# File modes must not depend on the umask of the user.
	chmod 755 "$context/nodens"
	install -m 644 LICENSE "$context/LICENSE"
	install -d -m 755 "$context/folders"
	install -d -m 1777 "$context/folders/tmp"
	$buildah build --isolation chroot --platform "linux/$arch" --timestamp "$time" \
		--build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
		"$@" -f deploy/Dockerfile "$context"
}
if [ $# = 1 ]; then
	build "$1" -t "$image"
	exit
fi
$buildah manifest rm "$image" >/dev/null 2>&1 || true
$buildah manifest create "$image"
for arch; do build "$arch" --manifest "$image"; done
