package main

import (
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
