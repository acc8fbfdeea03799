package bpf

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// churned is the number of questions whose answers change all the time.
const churned = 32

// churnBody is a version of the answer to question i. It repeats one pattern, so that
// a mixture of two versions is recognised.
func churnBody(i int, version uint32) []byte {
	return bytes.Repeat([]byte{byte(i), byte(version), byte(version >> 8), byte(version>>16) ^ byte(i)}, 25)
}

// TestFastpathChurn rewrites and withdraws answers while the program uses them. Each
// reply must have the answer to its question, whole.
func TestFastpathChurn(t *testing.T) {
	f := openTestFastpath(t, churned/2) // so that questions take each other's cells
	listener := netip.MustParseAddrPort("169.254.20.10:53")
	generation := f.Listen([]netip.AddrPort{listener})
	f.Lease(1, testClients[0], time.Hour)
	var writer sync.WaitGroup
	defer writer.Wait()
	stop := make(chan struct{})
	defer close(stop)
	questions := make([][]byte, churned)
	for i := range questions {
		questions[i] = append([]byte{2, 'q', byte('a' + i), 0}, 0, 16, 0, 1, 0)
	}
	written := make(chan struct{})
	writer.Go(func() {
		for version := uint32(0); ; version++ {
			select {
			case <-stop:
				return
			default:
			}
			for i, q := range questions {
				f.Withdraw(q)
				f.Put(&Answer{
					Generation: generation, Listener: listener, Question: q, Header: [10]byte{0x80, 0x80, 0, 1, 0, 1},
					Body: churnBody(i, version), KeepTTL: true, Left: time.Hour, Refresh: time.Hour,
				})
			}
			if version == 0 {
				close(written)
			}
		}
	})
	<-written
	answered, out := 0, make([]byte, 1024)
	for n := 0; n < 100_000; n++ {
		i := n % churned
		msg := append([]byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, questions[i][:8]...)
		code, got := runPacket(t, f.objs.Fastpath, frame(msg, testClients[0], listener, 4000), out)
		if code != tcRedirect {
			continue
		}
		answered++
		body := got[42+len(msg):]
		if len(body) != 100 || !bytes.Equal(body, bytes.Repeat(body[:4], 25)) || body[0] != byte(i) {
			t.Fatalf("question %d has the answer % x", i, body)
		}
	}
	passed, err := f.Passed()
	check(t, err)
	t.Logf("%d answered; cells that changed meanwhile: %d", answered, passed[fastPassReasonPASS_CHANGED-1])
	if answered < 1000 {
		t.Error("too few answers")
	}
}

// TestHashMapChurn shows why the table is no hash map. The kernel reuses elements while
// programs read them, so a program finds mixtures of two values. How often depends on the
// machine. make fastpath-long runs this test.
func TestHashMapChurn(t *testing.T) {
	if os.Getenv("NODENS_CHURN_HASH") == "" {
		t.Skip("runs with make fastpath-long, which sets NODENS_CHURN_HASH")
	}
	const words = 32
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8 * words, MaxEntries: churned})
	check(t, err)
	defer m.Close()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	check(t, err)
	defer counts.Close()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: hashReader(m, counts, words)})
	check(t, err)
	defer prog.Close()
	var writer sync.WaitGroup
	defer writer.Wait()
	stop := make(chan struct{})
	defer close(stop)
	writer.Go(func() {
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			var value [words]uint64
			key := n % (2 * churned)
			for i := range value {
				value[i] = key
			}
			_ = m.Delete((n + churned) % (2 * churned)) // makes room
			_ = m.Put(key, &value)
		}
	})
	var found, wrong uint64
	for late := time.Now().Add(time.Minute); wrong == 0 && time.Now().Before(late); {
		_, err := prog.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 1_000_000})
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
		check(t, errors.Join(counts.Lookup(uint32(0), &found), counts.Lookup(uint32(1), &wrong)))
	}
	t.Logf("%d finds, %d wrong values", found, wrong)
	if wrong == 0 {
		t.Error("a hash map gave no wrong value")
	}
}

// hashReader looks up key 0 and counts finds, and values whose words are not all 0.
func hashReader(m, counts *ebpf.Map, words int) asm.Instructions {
	count := func(index int64, label string) asm.Instructions {
		return asm.Instructions{
			asm.StoreImm(asm.RFP, -12, index, asm.Word).WithSymbol(label),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -12),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		}
	}
	ins := asm.Instructions{
		asm.StoreImm(asm.RFP, -8, 0, asm.Word),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R6, 0),
	}
	for i := range words {
		ins = append(ins, asm.LoadMem(asm.R1, asm.R0, int16(8*i), asm.DWord), asm.Or.Reg(asm.R6, asm.R1))
	}
	ins = append(ins, count(0, "found")...)
	ins = append(ins, asm.JEq.Imm(asm.R6, 0, "end"))
	ins = append(ins, count(1, "wrong")...)
	return append(ins, asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
}
