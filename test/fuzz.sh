#!/bin/sh
# Runs every fuzz target of the module for the given number of inputs, one after
# another. The budget is a count (60000x) and not a time: if a time runs out while a
# worker is busy, the go command reports a failure ("context deadline exceeded"),
# though no input failed.
set -eu
count=${1:-60000x}
go=${GO:-go}

for pkg in $("$go" list ./...); do
	for target in $("$go" test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "fuzz $pkg $target"
		"$go" test -run '^$' -fuzz "^$target\$" -fuzztime "$count" -fuzzminimizetime 100x "$pkg"
	done
done
