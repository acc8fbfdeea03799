#!/bin/bash
# build.sh [VERSION]: builds Cilium from its Go module, and Kubernetes' API server, unless
# they exist. Needs Debian, root and Go. Takes 15 minutes on two cores the first time.
set -eu
version=${1:-1.18.2}
: "${GO:=go}"
out=${XDG_CACHE_HOME:-$HOME/.cache}/nodens/cilium/$version
"$(dirname "$0")/../cluster/build.sh" kube
if ! command -v clang-19 >/dev/null; then # Cilium compiles its programs when it runs
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang-19 llvm-19
fi
mkdir -p "$out"
module=$(cd / && $GO mod download -json "github.com/cilium/cilium@v$version" | sed -n 's/^\t"Dir": "\(.*\)".*/\1/p')
ln -sfn "$module" "$out/module"
[ -e "$out/daemon" ] || (cd "$module" && CGO_ENABLED=0 $GO build -mod=readonly -trimpath -o "$out/" \
	-ldflags "-s -w -X github.com/cilium/cilium/pkg/version.ciliumVersion=$version" ./plugins/cilium-cni ./cilium-dbg ./daemon)
