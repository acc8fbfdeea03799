package main

import (
	"errors"
	"net/netip"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/config"
	"github.com/nodens-dns/nodens/doctor"
)

// addRedirect adds what flags and Corefile make of redirection, and how to look
// at what is in force.
func (f *doctorFlags) addRedirect(c *doctor.Config, files *corefiles, cfg source) {
	d := &daemon{flags: f.flags, files: files}
	plan := d.planRedirect(cfg)
	c.Redirect = doctor.Redirect{
		Mode: string(plan.settings.Mode), PinDir: plan.pinDir, Cgroup: plan.settings.Kubepods,
		State: func() (doctor.RedirectState, error) { return redirectInForce(plan.pinDir) },
	}
	if c.Redirect.Cgroup == "" {
		c.Redirect.Cgroup, _ = bpf.FindKubepods("/proc/self/mountinfo") // an error is for who needs it
	}
	if plan.settings.Mode == config.RedirectOff {
		return
	}
	s := doctor.Fault
	if plan.settings.Mode == config.RedirectAuto {
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
		out.Attached, out.Alive, out.HeartbeatAge, out.OptedOut = p.Attached(), p.Alive, p.HeartbeatAge, p.OptedOut
		for _, s := range p.Services {
			out.Targets[s.VIP] = s.Target
		}
	}
	return out, nil
}
