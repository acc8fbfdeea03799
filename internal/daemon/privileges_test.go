package daemon

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/netsetup"
)

func TestNeededPrivileges(t *testing.T) {
	plain, host := capability(unix.CAP_NET_BIND_SERVICE), capability(unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_ADMIN)
	redirect := host | capability(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_RESOURCE)
	for _, tt := range []struct {
		name string
		host *netsetup.Host
		mode config.RedirectMode
		want capabilities
		text string
	}{
		{"nothing", nil, config.RedirectOff, plain, "NET_BIND_SERVICE"},
		{"host", new(netsetup.Host), config.RedirectOff, host, "NET_ADMIN,NET_BIND_SERVICE"},
		{"redirect", nil, config.RedirectAuto, redirect, "BPF,NET_ADMIN,NET_BIND_SERVICE,PERFMON,SYS_ADMIN,SYS_PTRACE,SYS_RESOURCE"},
		{"both", new(netsetup.Host), config.RedirectOn, redirect, "BPF,NET_ADMIN,NET_BIND_SERVICE,PERFMON,SYS_ADMIN,SYS_PTRACE,SYS_RESOURCE"},
	} {
		d := &daemon{opts: &Options{}, host: tt.host, redirect: new(redirector)}
		d.redirect.plan.settings.Mode = tt.mode
		if got := d.needed(); got != tt.want || got.String() != tt.text {
			t.Errorf("%s: %v, want %v (%s)", tt.name, got, tt.want, tt.text)
		}
	}
	d := &daemon{opts: &Options{}, redirect: &redirector{clearing: true}}
	d.redirect.plan.settings.Mode = config.RedirectOff
	if got := d.needed(); got != redirect {
		t.Errorf("off, with a predecessor's programs to remove: %v, want %v", got, redirect)
	}
}
