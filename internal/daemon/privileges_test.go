package daemon

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestNeededCapabilities(t *testing.T) {
	plain, host := capability(unix.CAP_NET_BIND_SERVICE), capability(unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_ADMIN)
	redirect := host | capability(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_RESOURCE)
	for _, tt := range []struct {
		host, redirect bool
		want           capabilities
		text           string
	}{
		{false, false, plain, "NET_BIND_SERVICE"},
		{true, false, host, "NET_ADMIN,NET_BIND_SERVICE"},
		{false, true, redirect, "BPF,NET_ADMIN,NET_BIND_SERVICE,PERFMON,SYS_ADMIN,SYS_PTRACE,SYS_RESOURCE"},
		{true, true, redirect, "BPF,NET_ADMIN,NET_BIND_SERVICE,PERFMON,SYS_ADMIN,SYS_PTRACE,SYS_RESOURCE"},
	} {
		if got := neededCapabilities(tt.host, tt.redirect); got != tt.want || got.String() != tt.text {
			t.Errorf("host set-up %t, redirection %t: %v, want %v (%s)", tt.host, tt.redirect, got, tt.want, tt.text)
		}
	}
}
