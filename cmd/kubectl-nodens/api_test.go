package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// api is the part of an API server that the plugin uses. It allows the resources in
// rights.
type api struct {
	t      *testing.T
	rights []string // pods/exec, pods/proxy, …
	token  string   // that the status address requires

	mu         sync.Mutex
	pods       map[string]*corev1.Pod // by name
	daemonSets []appsv1.DaemonSet
	secrets    map[string]map[string][]byte
	configMaps map[string]map[string]string
	services   map[string]corev1.ServiceSpec
	deleted    []string
	// answers is what the command of exec, or the path of the proxy, of a pod returns.
	answers map[string]string
	// refusals maps pods without an answer to their usage errors.
	refusals map[string]string
	status   int             // of a command
	ctx      context.Context // of run
	// created is called with each new pod.
	created func(*corev1.Pod)
}

func newAPI(t *testing.T, rights ...string) *api {
	return &api{t: t, ctx: t.Context(), rights: rights, pods: make(map[string]*corev1.Pod), answers: make(map[string]string)}
}

// nodensPod adds a pod of nodens.
func (a *api) nodensPod(node string, args ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "nodens-" + node, Namespace: "kube-system", Labels: map[string]string{"app.kubernetes.io/name": "nodens"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: container, Args: args}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	a.pods[p.Name] = p
	return p
}

// run runs the plugin with arguments separated by spaces.
func (a *api) run(args string) (out string, err error) {
	a.t.Helper()
	s := httptest.NewServer(a)
	defer s.Close()
	var stdout, stderr bytes.Buffer
	cmd := newCommand(&stdout, &stderr)
	cmd.SetArgs(append(strings.Fields(args), "--kubeconfig", a.kubeconfig(s)))
	err = cmd.ExecuteContext(a.ctx)
	return stdout.String(), err
}

// kubeconfig returns the file of a client of s.
func (a *api) kubeconfig(s *httptest.Server) string {
	kubeconfig := filepath.Join(a.t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`, s.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return kubeconfig
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if path[0] == "apis" {
		path = path[1:]
	}
	// api/v1 or apps/v1, namespaces, NAMESPACE, RESOURCE, NAME, SUBRESOURCE
	path = append(path[4:], "", "", "")
	resource, name, sub := path[0], path[1], path[2]
	right := strings.TrimSuffix(resource+"/"+sub, "/")
	if sub != "" || slices.Contains([]string{"secrets", "configmaps", "services"}, resource) {
		if !slices.Contains(a.rights, right) {
			a.fail(w, apierrors.NewForbidden(schema.GroupResource{Resource: right}, name, nil))
			return
		}
	}
	switch {
	case sub == "exec":
		a.exec(w, r, name)
	case sub == "proxy":
		a.proxy(w, r, strings.Join(path[3:len(path)-3], "/"), name)
	default:
		a.object(w, r, resource, name)
	}
}

func (a *api) fail(w http.ResponseWriter, err *apierrors.StatusError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(err.Status().Code))
	err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"} // or the client ignores the message
	_ = json.NewEncoder(w).Encode(err.ErrStatus)
}

// object serves objects without a subresource.
func (a *api) object(w http.ResponseWriter, r *http.Request, resource, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var answer any
	switch {
	case resource == "pods" && r.Method == http.MethodPost:
		p := new(corev1.Pod)
		text, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(text, nil, p)
		}
		if err != nil {
			a.t.Error(err)
		}
		a.pods[p.Name] = p
		a.created(p)
		answer = p
	case resource == "pods" && r.Method == http.MethodDelete:
		a.deleted = append(a.deleted, name)
		answer = a.pods[name]
		delete(a.pods, name)
	case resource == "pods" && name != "":
		answer = a.pods[name]
	case resource == "pods":
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err != nil {
			a.t.Error(err)
		}
		for _, p := range a.pods {
			if selector.Matches(labels.Set(p.Labels)) {
				list.Items = append(list.Items, *p)
			}
		}
		answer = list
	case resource == "daemonsets":
		answer = &appsv1.DaemonSetList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSetList"}, Items: a.daemonSets}
	case resource == "secrets":
		answer = &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Data: a.secrets[name]}
	case resource == "services":
		spec, ok := a.services[name]
		if !ok {
			a.fail(w, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name))
			return
		}
		answer = &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"}, Spec: spec}
	case resource == "configmaps" && a.configMaps[name] == nil:
		a.fail(w, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name))
		return
	case resource == "configmaps":
		answer = &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Data: a.configMaps[name]}
	}
	if p, ok := answer.(*corev1.Pod); ok {
		if p == nil {
			a.fail(w, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name))
			return
		}
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *api) proxy(w http.ResponseWriter, r *http.Request, path, pod string) {
	name, _, _ := strings.Cut(pod, ":")
	if r.Header.Get("X-Nodens-Token") != a.token {
		http.Error(w, "no token", http.StatusUnauthorized)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	fmt.Fprint(w, a.answers[name+" "+pod[len(name):]+"/"+path])
}

// exec answers a command over SPDY. It refuses WebSockets, as old API servers do.
func (a *api) exec(w http.ResponseWriter, r *http.Request, pod string) {
	if !httpstream.IsUpgradeRequest(r) || r.Method != http.MethodPost {
		http.Error(w, "no WebSockets", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		a.t.Error(err)
		return
	}
	streams := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		a.t.Error("no upgrade")
		return
	}
	defer conn.Close()
	of := make(map[string]httpstream.Stream)
	for range 3 {
		select {
		case s := <-streams:
			of[s.Headers().Get(corev1.StreamType)] = s
		case <-r.Context().Done():
			return
		}
	}
	a.mu.Lock()
	answer, ok := a.answers[pod+" "+strings.Join(r.URL.Query()["command"], " ")]
	status, refusal := a.status, a.refusals[pod]
	a.mu.Unlock()
	result := metav1.Status{Status: metav1.StatusSuccess}
	switch {
	case ok:
	case refusal != "":
		fmt.Fprint(of[corev1.StreamTypeStderr], refusal)
		status = 2
	default:
		fmt.Fprint(of[corev1.StreamTypeStderr], "nodens does not answer")
		status = 1
	}
	if status != 0 {
		result = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(status)}}}}
	}
	fmt.Fprint(of[corev1.StreamTypeStdout], answer)
	_ = json.NewEncoder(of[corev1.StreamTypeError]).Encode(result)
	for _, s := range of {
		_ = s.Close()
	}
	select {
	case <-conn.CloseChan():
	case <-r.Context().Done():
	}
}
