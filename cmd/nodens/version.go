package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker: -X main.version=….
var version = ""

// buildVersion returns version, or else the version of the module.
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

// versionLine is the output of nodens version.
func versionLine() string {
	return fmt.Sprintf("nodens %s %s/%s %s", buildVersion(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}
