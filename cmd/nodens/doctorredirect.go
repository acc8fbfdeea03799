package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/doctor"
)

// addRedirect adds what flags and Corefile make of redirection, and how to look
// at what is in force.
func (f *doctorFlags) addRedirect(c *doctor.Config, cfg *config.Config) {
	settings := cfg.Redirect()
	pinDir := f.Redirect.PinDir
	c.Redirect = doctor.Redirect{
		Mode: string(settings.Mode), PinDir: pinDir, Cgroup: f.Redirect.Kubepods,
	}
	if c.Redirect.Cgroup == "" {
		c.Redirect.Cgroup, _ = bpf.FindKubepods("/proc/self/mountinfo") // an error is for who needs it
	}
	c.Redirect.State = func() (doctor.RedirectState, error) {
		s, err := redirectInForce(pinDir)
		if err == nil && len(settings.OptOut) > 0 {
			s.OptedOut, err = f.optedOut(c.Redirect.Cgroup, settings.OptOut)
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
		doctor.Need{Severity: s, Name: "BPF", Bit: capBPF, Any: []uint{capSysAdmin}, For: what},
		doctor.Need{Severity: s, Name: "PERFMON", Bit: capPerfmon, Any: []uint{capSysAdmin}, For: what},
		doctor.Need{Severity: s, Name: "NET_ADMIN", Bit: capNetAdmin, For: what},
	)
}

// redirectInForce is what this version of nodens has pinned; nothing where there
// is no BPF file system.
func redirectInForce(pinDir string) (doctor.RedirectState, error) {
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
		out.Attached, out.Alive, out.HeartbeatAge = p.Attached(), p.Alive, p.HeartbeatAge
		for _, s := range p.Services {
			out.Targets[s.VIP] = s.Target
		}
	}
	return out, nil
}

// optedOut returns the cgroups of the pods that redirection leaves alone.
func (f *doctorFlags) optedOut(kubepods string, names []config.PodName) (map[uint64]bool, error) {
	pods, err := f.OptedOut(kubepods, names)
	if err != nil {
		return nil, fmt.Errorf("pods that have opted out: %w", err)
	}
	return pods, nil
}
