package lab

import (
	"fmt"
	"os/exec"
)

// GoBuild builds the command of package pkg to path.
func GoBuild(path, pkg string, flags ...string) error {
	args := append([]string{"build", "-o", path}, flags...)
	return run("go", append(args, pkg)...)
}

// Compile compiles a C program of one file to path.
func Compile(path, source, compiler string, flags ...string) error {
	return run(compiler, append(flags, "-Wall", "-O1", "-o", path, source)...)
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}
