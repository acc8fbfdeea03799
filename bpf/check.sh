#!/bin/sh
# Compiles the BPF programs in a copy and compares the result with the committed one.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
if ! command -v clang-14 >/dev/null || ! command -v llvm-strip-14 >/dev/null; then
	echo "bpf: clang-14 and llvm-strip-14 are needed to check the generated code" >&2
	[ "${CI:-}" = true ] && exit 1
	exit 0
fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/bpf/testdata"
cp go.mod go.sum "$copy/"
cp bpf/gen.go bpf/gen_test.go bpf/*.c bpf/*.h "$copy/bpf/"
cp bpf/testdata/*.c "$copy/bpf/testdata/"
(cd "$copy" && "$go" generate ./bpf)
for f in "$copy"/bpf/*_bpfe[bl]*; do
	cmp "$f" "bpf/$(basename "$f")" || {
		echo "bpf: $(basename "$f") is stale: run make generate" >&2
		exit 1
	}
done
