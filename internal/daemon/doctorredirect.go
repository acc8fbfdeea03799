package daemon

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/internal/redirect"
)

// addRedirect adds the wanted redirection, and a function that reads the state
// in the kernel.
func (o doctorSetup) addRedirect(c *doctor.Config, cfg *config.Config) {
	settings := cfg.Redirect()
	pinDir := o.Redirect.PinDir
	c.Redirect = doctor.Redirect{
		Mode: string(settings.Mode), PinDir: pinDir, Cgroup: o.kubepods(),
	}
	c.Redirect.State = func() (doctor.RedirectState, error) {
		s, err := pinnedRedirect(pinDir)
		if err == nil && len(settings.OptOut) > 0 {
			s.OptedOut, err = redirect.OptedOut(c.Redirect.Cgroup, o.Redirect.PodLogs, settings.OptOut)
		}
		return s, err
	}
	if settings.Mode == config.RedirectOff {
		return
	}
	s := doctor.Fault
	if settings.Mode == config.RedirectAuto {
		s = doctor.Warning
	}
	const what = "for socket redirection"
	c.Needs = append(c.Needs,
		doctor.Need{Severity: s, Name: "BPF", Bit: unix.CAP_BPF, Any: []uint{unix.CAP_SYS_ADMIN}, For: what},
		doctor.Need{Severity: s, Name: "PERFMON", Bit: unix.CAP_PERFMON, Any: []uint{unix.CAP_SYS_ADMIN}, For: what},
		doctor.Need{Severity: s, Name: "NET_ADMIN", Bit: unix.CAP_NET_ADMIN, For: what},
	)
}

// kubepods returns the pods' cgroup, or "", which doctor reports if it needs one.
func (o doctorSetup) kubepods() string {
	if o.Redirect.Kubepods != "" {
		return o.Path(o.Redirect.Kubepods)
	}
	dir, _ := bpf.FindKubepods("/proc/self/mountinfo")
	return dir
}

// pinnedRedirect returns the state that this version of nodens has pinned. Without a
// BPF file system the state is empty.
func pinnedRedirect(pinDir string) (doctor.RedirectState, error) {
	out := doctor.RedirectState{Targets: make(map[netip.AddrPort]netip.AddrPort)}
	all, err := bpf.Inspect(pinDir)
	if errors.Is(err, bpf.ErrNoBPFFS) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	for _, p := range all {
		if !p.Ours {
			continue
		}
		out.Attached, out.Alive, out.HeartbeatAge, out.Own = p.Attached(), p.Alive, p.HeartbeatAge, p.Own
		for _, s := range p.Services {
			out.Targets[s.VIP] = s.Target
		}
	}
	return out, nil
}
