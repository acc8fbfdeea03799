package daemon

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
)

//go:embed default.corefile
var defaultCorefile string

// source is a Corefile, parsed, and what its files held when they were read.
type source struct {
	*config.Config
	files   []string // all that it was made from
	content content
}

// corefiles reads the Corefile that the flags name, with node-cache's rules:
// a base Corefile wins if there is one, and has its placeholders filled in.
type corefiles struct {
	opts *Options
	// warn is told of a kube-dns ConfigMap that cannot be used.
	warn func(error)

	kubeDNS config.KubeDNS // the last good one
}

// read reads and parses. Which files are imported is known only after parsing;
// what they held has to be known from before it: so it may read twice.
func (c *corefiles) read() (source, error) {
	files := c.files()
	for {
		held := contentOf(files)
		cfg, err := c.parse()
		if err != nil {
			return source{files: files, content: held}, err
		}
		all := c.files()
		if !c.opts.Sample {
			all = append(all, cfg.Files...)
		}
		slices.Sort(all)
		all = slices.Compact(all)
		if slices.Equal(all, files) {
			return source{cfg, files, held}, nil
		}
		files = all
	}
}

// files are those whose content decides, whether they exist or not.
func (c *corefiles) files() []string {
	var files []string
	if c.opts.KubeDNS != "" {
		files = append(files, filepath.Join(c.opts.KubeDNS, "stubDomains"), filepath.Join(c.opts.KubeDNS, "upstreamNameservers"))
	}
	if !c.opts.Sample {
		files = append(files, c.opts.BaseCorefile, c.opts.Corefile)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// parse reads what there is now.
func (c *corefiles) parse() (*config.Config, error) {
	if c.opts.Sample {
		return c.render("default.corefile", defaultCorefile, config.KubeDNS{})
	}
	src := hostSource(c.opts.Getenv)
	base, err := src.ReadFile(c.opts.BaseCorefile)
	if err == nil {
		return c.parseBase(string(base))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read base Corefile: %w", err)
	}
	text, err := src.ReadFile(c.opts.Corefile)
	if err != nil {
		return nil, fmt.Errorf("read Corefile: %w", err)
	}
	if k, err := c.readKubeDNS(); err != nil || len(k.StubDomains)+len(k.UpstreamNameservers) > 0 {
		c.warn(fmt.Errorf("kube-dns ConfigMap: not used, for there is no base Corefile %s to put it into", c.opts.BaseCorefile))
	}
	return config.Parse(c.opts.Corefile, string(text), src)
}

// parseBase fills in the base Corefile. What the ConfigMap says is left out if
// it spoils a Corefile that is good without it: a bad stub domain must not
// take the node's DNS down.
func (c *corefiles) parseBase(text string) (*config.Config, error) {
	k, err := c.readKubeDNS()
	if err != nil {
		c.warn(fmt.Errorf("kube-dns ConfigMap: the last good values stay in use: %w", err))
		k = c.kubeDNS
	}
	cfg, err := c.render(c.opts.BaseCorefile, text, k)
	if err == nil {
		c.kubeDNS = k
		return cfg, nil
	}
	cfg, lastGoodErr := c.render(c.opts.BaseCorefile, text, c.kubeDNS)
	if lastGoodErr != nil {
		return nil, err
	}
	c.warn(fmt.Errorf("kube-dns ConfigMap: the last good values stay in use: %w", err))
	return cfg, nil
}

// readKubeDNS reads the mounted ConfigMap; absent keys are none.
func (c *corefiles) readKubeDNS() (config.KubeDNS, error) {
	if c.opts.KubeDNS == "" {
		return config.KubeDNS{}, nil
	}
	var values [2]string
	for i, key := range []string{"stubDomains", "upstreamNameservers"} {
		b, err := hostSource(nil).ReadFile(filepath.Join(c.opts.KubeDNS, key))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return config.KubeDNS{}, err
		}
		values[i] = string(b)
	}
	return config.ParseKubeDNS(values[0], values[1])
}

func (c *corefiles) render(name, text string, k config.KubeDNS) (*config.Config, error) {
	env := serviceEnv(c.opts.UpstreamService)
	t := config.Template{
		LocalIPs: c.opts.LocalIPs, DNSPort: c.opts.DNSPort,
		ClusterDNSFrom: env, ClusterDomain: c.opts.ClusterDomain,
		PrometheusEndpoint: c.opts.Prometheus, KubeDNS: k,
	}
	t.ClusterDNS, _ = netip.ParseAddr(c.opts.Getenv(env))
	text, err := t.Render(name, text)
	if err != nil {
		return nil, err
	}
	return config.Parse(name, text, hostSource(c.opts.Getenv))
}

// hostSource is this process's files and environment.
func hostSource(getenv func(string) string) config.Source {
	dir, _ := os.Getwd()
	return config.Source{Files: os.DirFS("/"), Dir: dir, Getenv: getenv}
}

// serviceEnv is the variable in which the kubelet gives every pod the cluster
// IP of a Service.
func serviceEnv(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST"
}
