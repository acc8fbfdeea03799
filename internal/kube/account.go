package kube

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// AccountDir is the directory of the service account in a pod.
const AccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// ErrNoAccount means that the process does not run in a pod with a service
// account.
var ErrNoAccount = errors.New("no service account")

// Account is the address of the API server and the credentials for it.
type Account struct {
	Server string // host:port
	Dir    string // of token and ca.crt; both may be replaced at any time
}

// InCluster returns the account of the pod that the process runs in. It returns
// ErrNoAccount if the environment has no API server or dir has no token.
func InCluster(getenv func(string) string, dir string) (Account, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Account{}, ErrNoAccount
	}
	a := Account{Server: net.JoinHostPort(host, port), Dir: dir}
	_, err := a.token()
	if errors.Is(err, fs.ErrNotExist) {
		return Account{}, ErrNoAccount
	}
	return a, err
}

func (a Account) token() (string, error) {
	b, err := os.ReadFile(filepath.Join(a.Dir, "token"))
	if err != nil {
		return "", fmt.Errorf("service account: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// client trusts the certificates in ca.crt. It pings idle connections, so that it
// detects a lost API server within 45 s.
func (a Account) client() (*http.Client, error) {
	pem, err := os.ReadFile(filepath.Join(a.Dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("service account: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("service account: %s contains no certificate", filepath.Join(a.Dir, "ca.crt"))
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Client{Transport: &http.Transport{
		DialContext:           dialer.DialContext,
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}
