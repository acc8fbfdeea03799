package bpf

//go:generate go tool bpf2go -no-global-types -cc clang-14 -strip llvm-strip-14 -cflags "-O2 -Wall -Werror -mcpu=v2" -output-suffix _test lab testdata/lab.bpf.c
