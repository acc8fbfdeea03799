package daemon

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestNeededPrivileges(t *testing.T) {
	plain, host := capability(unix.CAP_NET_BIND_SERVICE), capability(unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_ADMIN)
	redirect := host | capability(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_RESOURCE)
	for _, tt := range []struct {
		name              string
		host, redirection bool
		want              capabilities
		text              string
	}{
		{"nothing", false, false, plain, "NET_BIND_SERVICE"},
		{"host", true, false, host, "NET_ADMIN,NET_BIND_SERVICE"},
		{"redirection", false, true, redirect, "BPF,NET_ADMIN,NET_BIND_SERVICE,PERFMON,SYS_ADMIN,SYS_PTRACE,SYS_RESOURCE"},
		{"both", true, true, redirect, "BPF,NET_ADMIN,NET_BIND_SERVICE,PERFMON,SYS_ADMIN,SYS_PTRACE,SYS_RESOURCE"},
	} {
		if got := needed(tt.host, tt.redirection); got != tt.want || got.String() != tt.text {
			t.Errorf("%s: %v, want %v (%s)", tt.name, got, tt.want, tt.text)
		}
	}
}
