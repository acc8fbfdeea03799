package lab

import (
	"path/filepath"
	"testing"
)

// StartDnsmasq runs dnsmasq with the given configuration lines on port 53 of
// address, an IP address of the namespace. It reads no file of the host.
func StartDnsmasq(t testing.TB, n *Netns, address, config string) *Process {
	t.Helper()
	NeedTools(t, "dnsmasq")
	conf := WriteFile(t, filepath.Join(t.TempDir(), "dnsmasq.conf"),
		"no-resolv\nno-hosts\nbind-interfaces\nuser=root\npid-file\nlisten-address="+address+"\n"+config)
	p := Command{Netns: n, Forks: true, Args: []string{"dnsmasq", "--keep-in-foreground", "--conf-file=" + conf, "--log-facility=-"}}.Start(t)
	p.Err.WaitFor(t, 0, `started, version`)
	return p
}

// StartUnbound runs unbound on port 53 of address, an IP address of the
// namespace. server is added to its server clause, rest to the file.
func StartUnbound(t testing.TB, n *Netns, address, server, rest string) *Process {
	t.Helper()
	p := Command{Netns: n, Forks: true, Args: UnboundArgs(t, address, server, rest)}.Start(t)
	p.Err.WaitFor(t, 0, `start of service`)
	return p
}

// UnboundArgs is the command line of StartUnbound.
func UnboundArgs(t testing.TB, address, server, rest string) []string {
	t.Helper()
	NeedTools(t, "unbound")
	conf := WriteFile(t, filepath.Join(t.TempDir(), "unbound.conf"), `server:
	interface: `+address+`
	access-control: 0.0.0.0/0 allow
	chroot: ""
	username: ""
	directory: ""
	pidfile: ""
	use-syslog: no
	logfile: ""
	num-threads: 1
	module-config: "iterator"
`+server+"\nremote-control:\n\tcontrol-enable: no\n"+rest)
	return []string{"unbound", "-d", "-c", conf}
}
