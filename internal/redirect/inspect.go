package redirect

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/bpf"
)

// PrintStatus prints what any process has pinned below pinDir. It returns false if
// the pins are incomplete or their daemon is not alive, or if redirection is wanted
// and there are no pins.
func PrintStatus(w io.Writer, pinDir string, wanted bool) (asWanted bool, err error) {
	pinned, err := bpf.Inspect(pinDir)
	switch {
	case errors.Is(err, bpf.ErrNoBPFFS):
		fmt.Fprintf(w, "redirect\tnone: %s is not in a BPF file system\n", pinDir)
		return !wanted, nil
	case err != nil:
		return false, err
	case len(pinned) == 0:
		if wanted {
			fmt.Fprintln(w, "redirect\tmissing")
		}
		return !wanted, nil
	}
	asWanted = true
	for _, p := range pinned {
		state, good := pinnedState(p)
		asWanted = asWanted && (good || len(p.Hooks) == 0 && !wanted)
		fmt.Fprintf(w, "redirect\t%s, version %s\n", state, filepath.Base(p.Dir))
		for _, s := range p.Services {
			fmt.Fprintf(w, "service\t%v to %v, fallback %s%s\n", s.VIP, s.Target, orNone(s.Fallbacks), lastResort(s))
		}
		if p.OptedOut > 0 {
			fmt.Fprintf(w, "opted out\t%d pods\n", p.OptedOut)
		}
	}
	return asWanted, nil
}

// pinnedState describes p. good means that all programs are attached and the daemon
// is alive.
func pinnedState(p bpf.Pinned) (state string, good bool) {
	switch {
	case len(p.Hooks) == 0:
		return "not attached: sockets are not redirected", false
	case !p.Attached():
		state = "attached in part: " + strings.Join(p.Hooks, " ")
	default:
		state, good = "attached", true
	}
	beat := fmt.Sprintf("heartbeat %v ago", p.HeartbeatAge.Round(10*time.Millisecond))
	switch {
	case !p.Ours:
		return state + ", another version's", false
	case p.Alive:
		return state + ", alive, " + beat, good
	case p.Canary:
		return state + ", hung: pods use the fallback, " + beat, false
	}
	return state + ", withdrawn or no daemon: pods use the fallback", false
}

func lastResort(s bpf.Service) string {
	if !s.LastResort.IsValid() {
		return ""
	}
	return fmt.Sprintf(", last resort %v", s.LastResort)
}

func orNone(list []netip.AddrPort) string {
	if len(list) == 0 {
		return "none"
	}
	texts := make([]string, len(list))
	for i, ap := range list {
		texts[i] = ap.String()
	}
	return strings.Join(texts, " ")
}
