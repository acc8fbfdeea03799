#!/bin/sh
# usage: deploy/release.sh VERSION
# Makes dist/: the binaries, the image of all architectures, the kubectl plugin with its
# krew manifest, the chart, SBOMs and the checksums. Builds of a commit are identical byte for byte. The workflow release.yml
# signs and publishes them.
set -eu
version=${1#v}
cd "$(dirname "$0")/.."
go=${GO:-go} buildah=${BUILDAH:-buildah}
archs=${ARCHS:-amd64 arm64}
time=$(git log -1 --format=%ct)
rm -rf dist
mkdir -p dist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# pack NAME DIR: a tar archive that depends on names, modes and content only.
pack() {
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" --mode=u=rwX,go=rX -C "$2" -cf - . | gzip -n >"dist/$1"
}

for arch in $archs; do
	mkdir -p "$work/$arch"
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch "$go" build -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.version=$version" -o "$work/$arch/nodens" ./cmd/nodens
	install -m 644 LICENSE "$work/$arch/LICENSE"
	"$go" run ./deploy/sbom "$work/$arch/nodens" "$version" >"dist/nodens-$version-linux-$arch.cdx.json"
	pack "nodens-$version-linux-$arch.tar.gz" "$work/$arch"
done

cp deploy/krew.yaml dist/nodens-krew.yaml
sed -i "s/{{VERSION}}/$version/g" dist/nodens-krew.yaml
for os in ${PLUGIN_SYSTEMS:-linux darwin}; do
	for arch in $archs; do
		plugin=$work/plugin-$os-$arch
		archive=kubectl-nodens-$version-$os-$arch
		mkdir -p "$plugin"
		(cd cmd/kubectl-nodens && CGO_ENABLED=0 GOOS=$os GOARCH=$arch "$go" build -trimpath -buildvcs=false \
			-ldflags "-s -w -X main.version=$version" -o "$plugin/kubectl-nodens" .)
		install -m 644 LICENSE "$plugin/LICENSE"
		"$go" run ./deploy/sbom "$plugin/kubectl-nodens" "$version" >"dist/$archive.cdx.json"
		pack "$archive.tar.gz" "$plugin"
		sum=$(sha256sum "dist/$archive.tar.gz" | cut -d' ' -f1)
		sed -i "s/{{SHA256 $os $arch}}/$sum/" dist/nodens-krew.yaml
	done
done

mkdir -p "$work/chart"
cp -R deploy/chart "$work/chart/nodens"
sed -i -e "s/^version: .*/version: $version/" -e "s/^appVersion: .*/appVersion: \"$version\"/" "$work/chart/nodens/Chart.yaml"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" --mode=u=rwX,go=rX -C "$work/chart" -cf - nodens | gzip -n >"dist/nodens-$version.tgz"

image=localhost/nodens-release:$version
# shellcheck disable=SC2086 # a list of architectures
GO=$go BUILDAH=$buildah deploy/image.sh "$image" "$version" $archs >/dev/null
case $archs in
*' '*) $buildah manifest push --quiet --all "$image" "oci:$work/oci:$version" >/dev/null ;;
*) $buildah push --quiet "$image" "oci:$work/oci:$version" >/dev/null ;;
esac
pack "nodens-$version-image.oci.tar.gz" "$work/oci"

(cd dist && sha256sum ./* >"$work/sums" && sed 's|\./||' "$work/sums" >SHA256SUMS)
cat dist/SHA256SUMS
