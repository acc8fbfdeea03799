package main

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker: -X main.version=….
var version = ""

// buildVersion is what the linker was told, else the module's version or its
// VCS revision.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "devel"
}

// versionLine is what nodens version prints.
func versionLine() string {
	return fmt.Sprintf("nodens %s %s/%s %s", buildVersion(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// printVersion is the command.
func printVersion(e env) error {
	if len(e.args) > 1 {
		fmt.Fprintln(e.stderr, "usage: nodens version")
		return errUsage
	}
	return printLine(e, versionLine())
}

// identity tells one process from another, to who asks for id.server in class
// CH. It gives away nothing else, and above all no version.
func identity() string { return "nodens " + rand.Text()[:10] }
