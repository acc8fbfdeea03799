package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nodens-dns/nodens/internal/state"
)

// Values of --via.
const (
	viaAuto  = "auto"
	viaExec  = "exec"
	viaProxy = "proxy"
)

// question is a request to one nodens: a command in its pod, or a path of its status
// address. Both return the same JSON.
type question struct {
	command []string
	path    string
}

var (
	askState    = question{[]string{"/nodens", "top", "-o", "json"}, state.Path}
	askFindings = question{[]string{"/nodens", "doctor", "-o", "json"}, "/api/v1/findings"}
)

// wrongUsage is the exit status of a nodens that does not know the command or its flags.
const wrongUsage = 2

// maxAnswer bounds the bytes of an answer.
const maxAnswer = 16 << 20

// ask returns the answer of the nodens in a pod.
func (c *cluster) ask(ctx context.Context, pod *corev1.Pod, q question) ([]byte, error) {
	if pod.Status.Phase != corev1.PodRunning {
		return nil, fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
	}
	if c.via == viaProxy {
		return c.proxy(ctx, pod, q.path)
	}
	text, err := c.exec(ctx, pod, q.command)
	if c.via == viaExec || !forbidden(err) {
		return text, err
	}
	text, perr := c.proxy(ctx, pod, q.path)
	switch {
	case perr == nil:
		return text, nil
	case forbidden(perr):
		return nil, fmt.Errorf("RBAC allows neither creating pods/exec nor getting pods/proxy in namespace %s: grant one of them", pod.Namespace)
	}
	return nil, fmt.Errorf("RBAC does not allow creating pods/exec in namespace %s, and the proxy failed: %w", pod.Namespace, perr)
}

func forbidden(err error) bool {
	return apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), "is forbidden: ")
}

// exec runs a command in a pod and returns its output, also if the exit status is not 0.
func (c *cluster) exec(ctx context.Context, pod *corev1.Pod, command []string) ([]byte, error) {
	r := c.client.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec")
	r.VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	// WebSockets are a GET request, and SPDY a POST. A role may allow one of the two.
	spdy, err := remotecommand.NewSPDYExecutor(c.config, "POST", r.URL())
	if err != nil {
		return nil, err
	}
	ws, err := remotecommand.NewWebSocketExecutor(c.config, "GET", r.URL().String())
	if err != nil {
		return nil, err
	}
	executor, err := remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) || forbidden(err)
	})
	if err != nil {
		return nil, err
	}
	out, errs := &limited{}, &limited{}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: errs})
	if err != nil && ctx.Err() != nil {
		return nil, err // the executor may still write to out and errs
	}
	var status exec.ExitError
	switch text := bytes.TrimSpace(errs.Bytes()); {
	case out.cut:
		return nil, fmt.Errorf("the output of %s has more than %d bytes", command[0], maxAnswer)
	case out.Len() > 0 && (err == nil || errors.As(err, &status)):
		return out.Bytes(), nil
	case errors.As(err, &status) && status.ExitStatus() == wrongUsage:
		return nil, fmt.Errorf("%s: %s: this nodens is older than the plugin supports", strings.Join(command, " "), text)
	case len(text) > 0:
		return nil, fmt.Errorf("%s: %s", strings.Join(command, " "), text)
	case err == nil:
		return nil, fmt.Errorf("%s printed nothing", strings.Join(command, " "))
	}
	return nil, err
}

// limited is a buffer that keeps the first maxAnswer bytes.
type limited struct {
	bytes.Buffer
	cut bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxAnswer {
		l.cut = true
		return len(p), nil
	}
	return l.Buffer.Write(p)
}

// proxy gets a path of the pod's status address through the API server.
func (c *cluster) proxy(ctx context.Context, pod *corev1.Pod, path string) ([]byte, error) {
	flags := flagsOf(pod.Spec)
	host, port, err := net.SplitHostPort(flags["status-address"])
	if ip := net.ParseIP(host); err != nil || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil, errors.New("the API server's proxy does not reach nodens: set -status-address to an address of the node, with -status-token-file, or grant create on pods/exec")
	}
	token, err := c.token(ctx, pod, flags["status-token-file"])
	if err != nil {
		return nil, err
	}
	body, err := c.client.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name+":"+port).
		SubResource("proxy").Suffix(path).SetHeader(state.TokenHeader, token).Stream(ctx)
	if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse); ok {
		err = fmt.Errorf("%s: %w", cause.Message, err) // err describes the status code only
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return text, err
}

// token returns the token of --status-token-file, or that of the Secret which the pod
// mounts as file.
func (c *cluster) token(ctx context.Context, pod *corev1.Pod, file string) (string, error) {
	if c.tokenFile != "" {
		text, err := os.ReadFile(c.tokenFile)
		return strings.TrimSpace(string(text)), err
	}
	volume, rest, ok := mounted(pod.Spec, file)
	if !ok || volume.Secret == nil {
		return "", errors.New("the status address needs a token: set --status-token-file")
	}
	secret, err := c.client.CoreV1().Secrets(pod.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("the status address needs a token; set --status-token-file: %w", err)
	}
	return strings.TrimSpace(string(secret.Data[keyOf(volume.Secret.Items, rest)])), nil
}

// keyOf returns the key of a Secret or ConfigMap that a volume mounts as file.
func keyOf(items []corev1.KeyToPath, file string) string {
	i := slices.IndexFunc(items, func(item corev1.KeyToPath) bool { return item.Path == file })
	if i < 0 {
		return file
	}
	return items[i].Key
}
