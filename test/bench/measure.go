package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

const (
	hitWindow  = 128  // queries in flight in the closed loop
	missWindow = 32   // fewer, so that no server reaches its own limit
	fewNames   = 1000 // the size before growth
)

// rates are the rates of the fixed-rate rounds, in queries per second.
var rates = [...]int{100, 1000, 5000}

// bench is the servers and the generator.
type bench struct {
	options
	servers   []*server
	upstream  *upstream
	generator *exec.Cmd
	jobs      *json.Encoder
	results   *json.Decoder
	progress  io.Writer
}

// figures are the results.
type figures struct {
	hits       [numMixes]phase   // by mix
	paced      [len(rates)]phase // mix A
	misses     phase
	grown      [2]phase // nodens with few names and with all
	idle       map[string]float64
	before     map[string]memory // with -names names
	after      map[string]memory // with -fill names
	last       memory            // of nodens, with -grow names
	search     map[string]searchFigures
	statistics *statisticsFigures
	pause      float64 // the longest pause of its garbage collector, in seconds
}

// memory of a server. cache is nodens_cache_bytes, 0 for the others.
type memory struct{ resident, cache float64 }

// startGenerator runs this program as the generator, on its own CPU.
func (b *bench) startGenerator(ctx context.Context, self string) error {
	b.generator = exec.CommandContext(ctx, self, "pinned", strconv.Itoa(b.generatorCPU), self, "generate")
	b.generator.Stderr = os.Stderr
	b.generator.SysProcAttr = dieWithParent()
	in, err := b.generator.StdinPipe()
	if err != nil {
		return err
	}
	out, err := b.generator.StdoutPipe()
	if err != nil {
		return err
	}
	b.jobs, b.results = json.NewEncoder(in), json.NewDecoder(out)
	return b.generator.Start()
}

// measure runs one job against s.
func (b *bench) measure(s *server, j job) (sample, error) {
	j.Server, j.Echo = s.addr, s.echo()
	asked := b.upstream.asked.Load()
	before, err := b.cpuTimes(s)
	if err != nil {
		return sample{}, err
	}
	r, err := b.do(j)
	if err != nil {
		return sample{}, fmt.Errorf("ask %s: %w", s.name, err)
	}
	after, err := b.cpuTimes(s)
	if err != nil {
		return sample{}, err
	}
	return newSample(r, after[0]-before[0], after[1]-before[1], b.upstream.asked.Load()-asked), nil
}

// cpuTimes are the CPU times of the server and of the generator.
func (b *bench) cpuTimes(s *server) ([2]time.Duration, error) {
	proc := os.DirFS("/proc")
	server, err := cpuTime(proc, s.pid())
	if err != nil {
		return [2]time.Duration{}, fmt.Errorf("%s: %w", s.name, err)
	}
	generator, err := cpuTime(proc, b.generator.Process.Pid)
	return [2]time.Duration{server, generator}, err
}

func (b *bench) do(j job) (result, error) {
	var r result
	if err := b.jobs.Encode(j); err != nil {
		return r, err
	}
	if err := b.results.Decode(&r); err != nil {
		return r, err
	}
	if r.Err != "" {
		return r, errors.New(r.Err)
	}
	if r.Answers == 0 {
		return r, errors.New("no correct answer")
	}
	return r, nil
}

// round runs a job against each of the servers. Each round starts with another
// server.
func (b *bench) round(i int, servers []*server, j job) (map[string]sample, error) {
	samples := make(map[string]sample)
	for k := range servers {
		s := servers[(i+k)%len(servers)]
		var err error
		if samples[s.name], err = b.measure(s, j); err != nil {
			return nil, err
		}
	}
	return samples, nil
}

// caches are the servers that resolve names.
func (b *bench) caches() []*server {
	return slices.DeleteFunc(slices.Clone(b.servers), (*server).echo)
}

// run measures everything but the search paths.
func (b *bench) run(ctx context.Context, f *figures) error {
	for _, step := range []struct {
		name string
		do   func(context.Context, *figures) error
	}{
		{"warm the caches", b.warm},
		{"idle", b.measureIdle},
		{"hits, closed loop", b.measureHits},
		{"hits, fixed rates", b.measurePaced},
		{"misses", b.measureMisses},
		{"growth", b.measureGrowth},
	} {
		began := time.Now()
		err := step.do(ctx, f)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(b.progress, "%s: %.0f s\n", step.name, time.Since(began).Seconds())
	}
	return nil
}

// warm queries every cache for all names until it has answered each.
func (b *bench) warm(ctx context.Context, f *figures) error {
	for _, m := range []mix{mixA, mixB, mixC} {
		for _, s := range b.caches() {
			if err := b.fill(s, job{Mix: m, To: b.names, Window: missWindow}); err != nil {
				return err
			}
		}
	}
	var err error
	f.before, err = b.memory(ctx)
	return err
}

func (b *bench) fill(s *server, j job) error {
	for range 3 {
		r, err := b.measure(s, j)
		if err != nil {
			return err
		}
		if r.Lost+r.Wrong == 0 {
			return nil
		}
		fmt.Fprintf(b.progress, "%s: %d lost and %d wrong while filling, retrying\n", s.name, r.Lost, r.Wrong)
	}
	return fmt.Errorf("%s does not answer all names of mix %v", s.name, j.Mix)
}

// measureIdle measures all servers without queries.
func (b *bench) measureIdle(ctx context.Context, f *figures) error {
	spent := func() (map[string]time.Duration, error) {
		all := make(map[string]time.Duration)
		for _, s := range b.servers {
			var err error
			if all[s.name], err = cpuTime(os.DirFS("/proc"), s.pid()); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	before, err := spent()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(b.idle):
	}
	after, err := spent()
	f.idle = make(map[string]float64)
	for name, t := range after {
		f.idle[name] = float64(t-before[name]) / float64(b.idle)
	}
	return err
}

func (b *bench) measureHits(ctx context.Context, f *figures) error {
	for i := range b.rounds {
		for _, m := range []mix{mixA, mixB, mixC} {
			round, err := b.round(i, b.servers, job{Mix: m, To: b.names, Duration: b.length, Window: hitWindow})
			if err != nil {
				return err
			}
			f.hits[m] = append(f.hits[m], round)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

func (b *bench) measurePaced(ctx context.Context, f *figures) error {
	for i := range b.rounds {
		for k, r := range rates {
			round, err := b.round(i, b.servers, job{To: b.names, Duration: b.length, Window: maxWindow, Rate: r})
			if err != nil {
				return err
			}
			f.paced[k] = append(f.paced[k], round)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// measureMisses queries the names from -names to -fill, a share in each round,
// and measures the added memory.
func (b *bench) measureMisses(ctx context.Context, f *figures) error {
	share := (b.filled - b.names) / b.rounds
	for i := range b.rounds {
		from := b.names + i*share
		round, err := b.round(i, b.caches(), job{From: from, To: from + share, Window: missWindow})
		if err != nil {
			return err
		}
		f.misses = append(f.misses, round)
		if ctx.Err() != nil {
			return nil
		}
	}
	var err error
	f.after, err = b.memory(ctx)
	return err
}

// measureGrowth compares nodens's hits among few names with hits among all.
func (b *bench) measureGrowth(ctx context.Context, f *figures) error {
	ours := b.servers[:1]
	all := b.grown
	if err := b.fill(ours[0], job{To: all, Window: missWindow}); err != nil {
		return err
	}
	mem, err := b.memory(ctx)
	if err != nil {
		return err
	}
	f.last = mem[nodens]
	if f.pause, err = ours[0].gauge(ctx, `go_gc_duration_seconds{quantile="1"}`); err != nil {
		return err
	}
	for i := range b.rounds {
		for k, to := range []int{min(fewNames, all), all} {
			round, err := b.round(i, ours, job{To: to, Duration: b.length, Window: hitWindow})
			if err != nil {
				return err
			}
			f.grown[k] = append(f.grown[k], round)
		}
	}
	return nil
}

func (b *bench) memory(ctx context.Context) (map[string]memory, error) {
	all := make(map[string]memory)
	for _, s := range b.servers {
		rss, err := residentMemory(os.DirFS("/proc"), s.pid())
		if err != nil {
			return nil, err
		}
		m := memory{resident: float64(rss)}
		if s.name == nodens {
			if m.cache, err = s.gauge(ctx, "nodens_cache_bytes"); err != nil {
				return nil, err
			}
		}
		all[s.name] = m
	}
	return all, nil
}
