package bpf

// This needs clang 14 and llvm-strip 14, the versions of Debian 12. Other versions
// produce different objects.
//go:generate go tool bpf2go -no-global-types -cc clang-14 -strip llvm-strip-14 -cflags "-O2 -Wall -Werror -mcpu=v2" -type hook -type exit_reason -type limits -type service_flags -type endpoint -type service -type settings -type flow -type socket_flows redirect redirect.bpf.c
//go:generate go tool bpf2go -no-global-types -cc clang-14 -strip llvm-strip-14 -cflags "-O2 -Wall -Werror -mcpu=v3" -type limits -type pass_reason -type settings -type lease -type lease_bucket -type lease_hits -type bucket -type answer_key -type cell_head -type small_cell -type large_cell -type zone_stats fast fastpath.bpf.c
