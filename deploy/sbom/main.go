// Command sbom prints the modules of a Go binary as a CycloneDX 1.5 document. It reads
// what the linker recorded, so the document is true of this binary and has no time.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

type bom struct {
	Format   string `json:"bomFormat"`
	Spec     string `json:"specVersion"`
	Version  int    `json:"version"`
	Metadata struct {
		Component component `json:"component"`
	} `json:"metadata"`
	Components []component `json:"components"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: sbom BINARY VERSION")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	b := bom{Format: "CycloneDX", Spec: "1.5", Version: 1}
	b.Metadata.Component = module("application", info.Main.Path, args[1])
	b.Components = append(b.Components, module("library", "std", info.GoVersion))
	for _, m := range info.Deps {
		b.Components = append(b.Components, dependency(m, args[1]))
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(b)
}

// dependency returns the module that was built, which may replace the required one. A
// module of this repository gets the version of the binary.
func dependency(m *debug.Module, version string) component {
	switch r := m.Replace; {
	case r == nil:
	case strings.HasPrefix(r.Path, "."):
		return module("library", m.Path, version)
	default:
		m = r
	}
	return module("library", m.Path, m.Version)
}

func module(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + version
	return component{kind, purl, path, version, purl}
}
