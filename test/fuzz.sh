#!/bin/sh
# Runs every fuzz target of the module for the given number of inputs, one
# target after another. The budget is a count (60000x), not a time: a time
# that runs out while a worker is busy is reported by the go command as a
# failure of the target ("context deadline exceeded"), though no input failed.
set -eu
count=${1:-60000x}
go=${GO:-go}

for pkg in $("$go" list ./...); do
	for target in $("$go" test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "fuzz $pkg $target"
		"$go" test -run '^$' -fuzz "^$target\$" -fuzztime "$count" -fuzzminimizetime 100x "$pkg"
	done
done
