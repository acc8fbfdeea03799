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
	"github.com/nodens-dns/nodens/internal/watch"
)

//go:embed default.corefile
var defaultCorefile string

// source is a parsed Corefile and the files that it comes from.
type source struct {
	*config.Config
	files   []string
	content watch.Sum // of files, taken before they were read
	kept    keptConfig
}

// corefiles reads the Corefile that the options name, by node-cache's rules: if the
// base Corefile exists, it is used and its placeholders are filled in.
type corefiles struct {
	opts *Options
	// warn is called if the kube-dns ConfigMap cannot be used.
	warn func(error)

	kubeDNS config.KubeDNS // the last good values
}

// read reads and parses the Corefile. Only the parser knows the imported files, but
// their content must be hashed before they are read. So read may parse twice.
func (c *corefiles) read() (source, error) {
	files := c.files()
	for {
		content := watch.SumOf(files)
		src := c.opts.source(watch.Root{Dir: c.opts.Files})
		cfg, err := c.parse(src)
		if err != nil {
			return source{files: files, content: content}, err
		}
		all := c.files(cfg.Files...)
		if slices.Equal(all, files) {
			return source{cfg, files, content, keptConfig{src.Texts, c.kubeDNS}}, nil
		}
		files = all
	}
}

// files lists the files that determine the configuration, even those that do not
// exist, and the imported ones.
func (c *corefiles) files(imported ...string) []string {
	var files []string
	if c.opts.KubeDNS != "" {
		files = append(files, filepath.Join(c.opts.KubeDNS, "stubDomains"), filepath.Join(c.opts.KubeDNS, "upstreamNameservers"))
	}
	if !c.opts.Sample {
		files = append(append(files, c.opts.BaseCorefile, c.opts.Corefile), imported...)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

func (c *corefiles) parse(src config.Source) (*config.Config, error) {
	if c.opts.Sample {
		return c.render(src, "default.corefile", defaultCorefile, config.KubeDNS{})
	}
	if c.opts.CorefileText != nil {
		return c.parseText(c.opts.Corefile, string(c.opts.CorefileText), src)
	}
	base, err := src.ReadFile(c.opts.BaseCorefile)
	if err == nil {
		return c.parseBase(src, string(base))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read base Corefile: %w", err)
	}
	text, err := src.ReadFile(c.opts.Corefile)
	if err != nil {
		return nil, fmt.Errorf("read Corefile: %w", err)
	}
	if k, err := c.readKubeDNS(src); err != nil || len(k.StubDomains)+len(k.UpstreamNameservers) > 0 {
		c.warn(fmt.Errorf("kube-dns ConfigMap: not used, because the base Corefile %s does not exist", c.opts.BaseCorefile))
	}
	return c.parseText(c.opts.Corefile, string(text), src)
}

// parseText parses a Corefile and sets its cluster domain.
func (c *corefiles) parseText(name, text string, src config.Source) (*config.Config, error) {
	cfg, err := config.Parse(name, text, src)
	if err == nil {
		err = cfg.SetClusterDomain(c.opts.ClusterDomain)
	}
	if err != nil {
		return nil, err
	}
	return cfg, nil
}

// parseBase fills in and parses the base Corefile. If that fails because of the
// ConfigMap, it uses the last good values: a bad stub domain must not stop the
// node's DNS.
func (c *corefiles) parseBase(src config.Source, text string) (*config.Config, error) {
	k, err := c.readKubeDNS(src)
	if err != nil {
		c.warn(fmt.Errorf("kube-dns ConfigMap: the last good values stay in use: %w", err))
		k = c.kubeDNS
	}
	cfg, err := c.render(src, c.opts.BaseCorefile, text, k)
	if err == nil {
		c.kubeDNS = k
		return cfg, nil
	}
	cfg, lastGoodErr := c.render(src, c.opts.BaseCorefile, text, c.kubeDNS)
	if lastGoodErr != nil {
		return nil, err
	}
	c.warn(fmt.Errorf("kube-dns ConfigMap: the last good values stay in use: %w", err))
	return cfg, nil
}

// readKubeDNS reads the mounted ConfigMap. A key that is missing is empty.
func (c *corefiles) readKubeDNS(src config.Source) (config.KubeDNS, error) {
	if c.opts.KubeDNS == "" {
		return config.KubeDNS{}, nil
	}
	var values [2]string
	for i, key := range []string{"stubDomains", "upstreamNameservers"} {
		b, err := src.ReadFile(filepath.Join(c.opts.KubeDNS, key))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return config.KubeDNS{}, err
		}
		values[i] = string(b)
	}
	return config.ParseKubeDNS(values[0], values[1])
}

func (c *corefiles) render(src config.Source, name, text string, k config.KubeDNS) (*config.Config, error) {
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
	return c.parseText(name, text, src)
}

// source returns files and the environment of the daemon.
func (o *Options) source(files fs.FS) config.Source {
	dir := o.Dir
	if dir == "" {
		dir, _ = os.Getwd()
	}
	return config.Source{Files: files, Dir: dir, Getenv: o.Getenv, Texts: make(map[string][]byte)}
}

// serviceEnv names the environment variable by which the kubelet gives pods the
// cluster IP of a Service.
func serviceEnv(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST"
}
