package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/nodens-dns/nodens/internal/state"
)

const (
	execState    = " /nodens top -o json"
	execFindings = " /nodens doctor -o json"
)

func stateJSON(change func(*state.State)) string {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &state.State{
		Version: "1.2.3", Node: "inside", Ready: true, Started: start, Time: start.Add(time.Minute), Requests: 100, Hits: 90, Misses: 10,
		Zones:       []state.Zone{{Name: ".", MissLatency: state.Latency{Count: 10, P99: 0.0123}}},
		Upstreams:   []state.Upstream{{Zone: ".", Address: "192.0.2.1:53", Healthy: true}},
		Redirection: state.Redirection{Mode: "auto", State: "on"}, Fastpath: state.Fastpath{Mode: "off", State: "off"},
		Top: map[string]state.TopLists{"1m": {Covers: 60, Queries: 60, Names: []state.Entry{{Key: "www.example.org.", Zone: ".", Count: 60}}}},
	}
	change(s)
	text, _ := json.Marshal(s)
	return string(text)
}

func same(*state.State) {}

// wantStatus checks the exit status that err causes.
func wantStatus(t *testing.T, err error, want int) {
	t.Helper()
	var status exitStatus
	if err != nil && !errors.As(err, &status) || int(status) != want {
		t.Errorf("error %v, want exit status %d", err, want)
	}
}

// wantLines checks lines after spaces are made one.
func wantLines(t *testing.T, out string, want ...string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	for _, w := range want {
		if !slices.Contains(lines, w) {
			t.Errorf("no line %q in\n%s", w, out)
		}
	}
}

func TestStatus(t *testing.T) {
	a := newAPI(t, "pods/exec")
	a.nodensPod("node1")
	a.nodensPod("node2")
	a.nodensPod("node3")
	a.nodensPod("node4").Status.Phase = corev1.PodPending
	a.answers["nodens-node1"+execState] = stateJSON(same)
	a.answers["nodens-node2"+execState] = stateJSON(func(s *state.State) {
		s.Upstreams[0].Healthy = false
		s.Redirection.State = "fallback"
	})
	out, err := a.run("status")
	wantStatus(t, err, 1)
	wantLines(t, out, "NODE VERSION READY HITS P99 MISS UPSTREAMS REDIRECTION FAST PATH",
		"node1 1.2.3 yes 90.0% 12.3ms 1 up auto: on off",
		"node2 1.2.3 yes 90.0% 12.3ms 0 up, down: 192.0.2.1:53 auto: fallback off",
		"node3 - no - - - - -", "node3: no state: /nodens top -o json: nodens does not answer",
		"node4 - no - - - - -", "node4: no state: pod nodens-node4 is Pending")
	if header, row := strings.Index(out, "REDIRECTION"), strings.Index(out, "auto: on"); header != row-strings.Index(out, "\n")-1 {
		t.Errorf("the columns are not aligned:\n%s", out)
	}
	a.refusals = map[string]string{"nodens-node3": "flag provided but not defined: -o"}
	out, err = a.run("status --nodes node2,node3 -o wide")
	wantStatus(t, err, 1)
	wantLines(t, out, "node3 - no - - - - - - - - - - -",
		"node3: no state: /nodens top -o json: flag provided but not defined: -o: this nodens is older than the plugin supports")
	out, err = a.run("status --nodes node1,node2 -o wide")
	wantStatus(t, err, 0)
	wantLines(t, out, "node1 1.2.3 yes 90.0% 12.3ms 1 up auto: on off nodens-node1 1m0s 100 0 0 of 0 MiB none")
	out, err = a.run("status --nodes node1 -o yaml")
	wantStatus(t, err, 0)
	wantLines(t, out, "- node: node1", "hits: 90", "node: node1")
	if strings.Contains(out, "www.example.org.") {
		t.Errorf("the status has lists:\n%s", out)
	}
	if out, err = a.run("status --nodes node1,node9"); err == nil || !strings.Contains(err.Error(), "node9") {
		t.Errorf("a node without nodens: %v: %s", err, out)
	}
}

// One of the two rights is enough. Without both, the error names them.
func TestRights(t *testing.T) {
	a := newAPI(t)
	pod := a.nodensPod("node1", "-status-address=0.0.0.0:9354", "-status-token-file", "/etc/nodens/token/key")
	if out, _ := a.run("status"); !strings.Contains(out, "RBAC allows neither creating pods/exec nor getting pods/proxy in namespace kube-system") &&
		!strings.Contains(out, "the status address needs a token") {
		t.Error(out)
	}
	a.rights, a.token = []string{"pods/proxy", "secrets"}, "secret"
	pod.Spec.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "status"}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/etc/nodens/token"}}
	a.secrets = map[string]map[string][]byte{"status": {"key": []byte("secret\n")}}
	a.answers["nodens-node1 :9354/api/v1/state"] = stateJSON(same)
	out, err := a.run("status")
	wantStatus(t, err, 0)
	wantLines(t, out, "node1 1.2.3 yes 90.0% 12.3ms 1 up auto: on off")
	if out, _ := a.run("status --via exec"); !strings.Contains(out, "forbidden") {
		t.Errorf("--via exec without the right: %s", out)
	}
	a.token = "another"
	if out, _ := a.run("status"); !strings.Contains(out, "no token: the server has asked") {
		t.Errorf("with a wrong token: %s", out)
	}
	a.rights = []string{"secrets"}
	if out, _ := a.run("status"); !strings.Contains(out, "RBAC allows neither creating pods/exec nor getting pods/proxy in namespace kube-system") {
		t.Error(out)
	}
	a.rights, pod.Spec.Containers[0].Args = []string{"pods/proxy"}, nil
	if out, _ := a.run("status"); !strings.Contains(out, "set -status-address to an address of the node") {
		t.Errorf("a loopback address: %s", out)
	}
}

func TestDoctor(t *testing.T) {
	lost := `{"id":"pod-lost","severity":"fault","view":"x","what":"pod %s gets no reply","why":"W","do":"D"}`
	note := `{"id":"large-lost","severity":"note","view":"node","what":"N","why":"W2","do":"D2"}`
	report := func(findings ...string) string {
		return fmt.Sprintf(`{"facts":[],"findings":[%s],"unexamined":[]}`, strings.Join(findings, ","))
	}
	a := newAPI(t, "pods/exec")
	a.coreDNSPod()
	a.pods["coredns"].Spec.Volumes = nil // without a Corefile
	a.status = 1
	for i, node := range []string{"node1", "node2"} {
		a.nodensPod(node)
		a.answers["nodens-"+node+execFindings] = report(note, fmt.Sprintf(lost, fmt.Sprint(i)))
	}
	out, err := a.run("doctor")
	wantStatus(t, err, 1)
	want := `FAULT pod-lost
  on    node1
  what  pod 0 gets no reply
  on    node2
  what  pod 1 gets no reply
  why   W
  do    D

NOTE large-lost
  on    all 2 nodes
  what  N
  why   W2
  do    D2

2 nodes, 2 findings
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	a.status = 0
	a.answers["nodens-node1"+execFindings] = report(note)
	a.answers["nodens-node2"+execFindings] = `{"findings":[],"unexamined":["pods"]}`
	out, err = a.run("doctor -o wide")
	wantStatus(t, err, 2)
	wantLines(t, out, "node2: not examined: pods", "on node1", "2 nodes, 1 finding, 1 thing could not be examined")
	a.answers["nodens-node2"+execFindings] = report(note)
	out, err = a.run("doctor -o json")
	wantStatus(t, err, 0)
	var d diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil || len(d.Findings) != 1 || !slices.Equal(d.Findings[0].Seen[0].Nodes, []string{"node1", "node2"}) {
		t.Errorf("%v: %s", err, out)
	}
}

// What a node reports cannot change the terminal or the table.
func TestControlCharacters(t *testing.T) {
	const evil = "a\x1b[2J\tb\nc\u009bd"
	text, _ := json.Marshal(evil)
	a := newAPI(t, "pods/exec")
	a.nodensPod("node1")
	a.answers["nodens-node1"+execState] = stateJSON(func(s *state.State) {
		s.Problems, s.Upstreams[0].Healthy, s.Upstreams[0].Address = []string{evil}, false, evil
	})
	a.answers["nodens-node1"+execFindings] = fmt.Sprintf(`{"findings":[{"id":"x","severity":"note","what":%s}],"unexamined":[%[1]s]}`, text)
	for _, args := range []string{"status", "status -o wide", "top", "doctor -o wide"} {
		out, _ := a.run(args)
		if !strings.Contains(out, "a?[2J?b") || strings.ContainsAny(out, "\x1b\u009b\t") {
			t.Errorf("%s: %q", args, out)
		}
	}
	var all []nodeStatus
	out, err := a.run("status -o json")
	if jerr := json.Unmarshal([]byte(out), &all); err != nil || jerr != nil || all[0].State.Problems[0] != evil {
		t.Errorf("%v, %v: %q", err, jerr, out)
	}
}

func TestTop(t *testing.T) {
	a := newAPI(t, "pods/exec")
	a.nodensPod("node1")
	a.nodensPod("node2")
	a.nodensPod("node3")
	a.answers["nodens-node1"+execState] = stateJSON(same)
	a.answers["nodens-node2"+execState] = stateJSON(same)
	out, err := a.run("top")
	wantStatus(t, err, 1)
	wantLines(t, out, "2.0 100.0% www.example.org. .", "PROBLEM: node3: /nodens top -o json: nodens does not answer", "nodens 1.2.3 2 of 3 nodes NOT READY up 1m0s")
	out, err = a.run("top --nodes node1")
	wantStatus(t, err, 0)
	wantLines(t, out, "nodens 1.2.3 1 node ready up 1m0s")
	if _, err := a.run("top --nodes node3"); err == nil || !strings.Contains(err.Error(), "node3: /nodens top -o json: nodens does not answer") {
		t.Errorf("no node answers: %v", err)
	}
	a.answers["nodens-node1"+execState] = stateJSON(func(s *state.State) {
		var names []state.Entry
		for i := range 30 {
			names = append(names, state.Entry{Key: fmt.Sprintf("n%d.", i), Zone: ".", Count: 1})
		}
		s.Top["1m"] = state.TopLists{Covers: 60, Queries: 30, Names: names}
	})
	for args, want := range map[string]int{"top --nodes node1": 20, "top --nodes node1 -o wide": 30} {
		if out, err := a.run(args); err != nil || strings.Count(out, "3.3%") != want {
			t.Errorf("%s: want %d names, %v: %s", args, want, err, out)
		}
	}
	a.answers["nodens-node1"+execState] = stateJSON(same)
	out, err = a.run("top -o json --nodes node1,node2")
	wantStatus(t, err, 0)
	if s, err := state.Read(strings.NewReader(out)); err != nil || s.Requests != 200 || !s.Ready {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := a.run("top --window 2m"); err == nil {
		t.Error("the window 2m is accepted")
	}
}

// An open top gets the merged state again and again.
func TestFollow(t *testing.T) {
	a := newAPI(t, "pods/exec")
	a.nodensPod("node1")
	a.answers["nodens-node1"+execState] = stateJSON(same)
	s := httptest.NewServer(a)
	defer s.Close()
	c := &cluster{flags: genericclioptions.NewConfigFlags(true), parallel: 1, timeout: time.Minute, via: viaAuto}
	*c.flags.Namespace, *c.flags.KubeConfig = "kube-system", a.kubeconfig(s)
	n, enough := 0, errors.New("enough")
	err := c.follow(t.Context(), func(s *state.State) error {
		if s.Node != "1 node" || s.Requests != 100 {
			t.Errorf("%+v", s)
		}
		if n++; n == 2 {
			return enough
		}
		return nil
	})
	if err != enough {
		t.Errorf("%d states: %v", n, err)
	}
}

func TestProgress(t *testing.T) {
	var out strings.Builder
	p := &progress{w: &out, all: 2}
	p.add(nil)
	p.add(errors.New("x"))
	p.end()
	if want := "\r1 of 2 answers, 0 failed \r2 of 2 answers, 1 failed \r\x1b[K"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestClients(t *testing.T) {
	a := newAPI(t)
	a.nodensPod("node1")
	a.nodensPod("node2")
	a.created = func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		message := "0 1 kubernetes.default\n0 1 kubernetes.default.svc\n0 1 kubernetes.default.svc.cluster.local.\n0 520 example.com\n"
		if p.Spec.NodeName == "node2" { // killed
			message = "2 3 kubernetes.default\n124 1000 kubernetes.default.svc\n0 1 kubernetes.default.svc.cluster.local.\n"
		}
		ended := &corev1.ContainerStateTerminated{Message: message, ExitCode: 137, Reason: "OOMKilled"}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: ended}}}
		s := p.Spec.Containers[0].SecurityContext
		if p.Namespace != "default" || *s.AllowPrivilegeEscalation || !*p.Spec.SecurityContext.RunAsNonRoot || p.Spec.ActiveDeadlineSeconds == nil {
			t.Errorf("%+v", p)
		}
		if look := p.Spec.Containers[0].Command[4]; p.Spec.Containers[0].Image == "b" && look != "musl-lookup" || p.Spec.Containers[0].Image == "a" && look != "getent hosts" {
			t.Errorf("image %s looks up by %q", p.Spec.Containers[0].Image, look)
		}
	}
	out, err := a.run("test --image a --image b=musl-lookup")
	wantStatus(t, err, 1)
	wantLines(t, out, "NODE IMAGE OK LONGEST PROBLEMS", "node1 a 4 of 4 5.20s example.com: slow, 5.2s", "node1 b=musl-lookup 4 of 4 5.20s example.com: slow, 5.2s",
		"node2 b=musl-lookup 1 of 4 10.00s kubernetes.default: not found; kubernetes.default.svc: no answer within 10 s; "+
			"example.com: no result: the client ended with exit status 137: OOMKilled")
	out, _ = a.run("test --image a --nodes node2 -o wide")
	wantLines(t, out, "NODE IMAGE OK LONGEST PROBLEMS LOOKUPS")
	if !strings.Contains(out, "  kubernetes.default 0.03s, kubernetes.default.svc 10.00s, kubernetes.default.svc.cluster.local. 0.01s, example.com 0.00s\n") {
		t.Error(out)
	}
	if len(a.deleted) != 5 || len(a.pods) != 2 {
		t.Errorf("deleted %q, left %d pods", a.deleted, len(a.pods))
	}
	out, err = a.run("test --image a --nodes node1 -o json")
	wantStatus(t, err, 0)
	var trials []trial
	if err := json.Unmarshal([]byte(out), &trials); err != nil || len(trials) != 1 || trials[0].Lookups[3] != (lookup{Name: "example.com", Seconds: 5.2}) {
		t.Errorf("%v: %s", err, out)
	}
}

// If a pod does not start, the plugin reports why and deletes it.
func TestClientThatWaits(t *testing.T) {
	a := newAPI(t)
	a.nodensPod("node1")
	a.created = func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not there"}}}}
	}
	out, err := a.run("test --image a --node-timeout 1500ms")
	wantStatus(t, err, 1)
	wantLines(t, out, "node1 a 0 of 0 0.00s no answer within 1.5s (--node-timeout); the client pod has not ended: ErrImagePull: not there")
	if len(a.deleted) != 1 {
		t.Errorf("deleted %q", a.deleted)
	}
}

// After Ctrl-C, the plugin deletes its pods and starts no more.
func TestClientsAreDeleted(t *testing.T) {
	a := newAPI(t)
	a.nodensPod("node1")
	a.nodensPod("node2")
	ctx, interrupt := context.WithCancel(t.Context())
	a.ctx = ctx
	a.created = func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		interrupt()
	}
	if out, err := a.run("test --image a --parallel 1"); !errors.Is(err, context.Canceled) || out != "" {
		t.Errorf("%v: %s", err, out)
	}
	if len(a.deleted) != 1 || len(a.pods) != 2 {
		t.Errorf("deleted %q, left %d pods", a.deleted, len(a.pods))
	}
}

// daemonSet is like the chart's.
func daemonSet(args ...string) appsv1.DaemonSet {
	one := intstr.FromInt32(1)
	return appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "nodens", Namespace: "kube-system"},
		Spec: appsv1.DaemonSetSpec{
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &one}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: container, Image: "example.org/nodens:1.0.0", Args: args,
					SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "BPF"}}},
					VolumeMounts:    []corev1.VolumeMount{{Name: "config", MountPath: "/etc/coredns"}}}},
				Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "nodens"}}}}},
			}},
		},
	}
}

func TestUpgradeCheck(t *testing.T) {
	a := newAPI(t, "configmaps")
	good := ".:53 {\n bind __PILLAR__LOCAL__DNS__\n cache 30\n forward . __PILLAR__CLUSTER__DNS__\n}\n"
	a.configMaps = map[string]map[string]string{"nodens": {"Corefile.base": good}}
	a.daemonSets = []appsv1.DaemonSet{daemonSet("-localip", "169.254.20.10", "-basecorefile=/etc/coredns/Corefile.base")}
	out, err := a.run("upgrade-check")
	wantStatus(t, err, 0)
	wantLines(t, out, "LEVEL OBJECT WHAT TO KNOW", "note daemonset/nodens image example.org/nodens:1.0.0; this plugin checks for devel")
	if !strings.Contains(out, "add tier: resilient") {
		t.Error(out)
	}
	bad := daemonSet("-redirect", "auto", "--nonsense=1", "-localip=169.254.20.10")
	bad.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	a.daemonSets = []appsv1.DaemonSet{bad}
	a.configMaps["nodens"]["Corefile.base"] = ".:53 {\n nonsense\n forward . 192.0.2.1\n}\n"
	out, err = a.run("upgrade-check")
	wantStatus(t, err, 1)
	wantLines(t, out, `error daemonset/nodens the flag -redirect was removed: write "redirect auto" into a server block of the Corefile, see docs/cilium.md`,
		"error daemonset/nodens the flag -nonsense does not exist in this version")
	if !strings.Contains(out, "updateStrategy is OnDelete") || !strings.Contains(out, "line 2: nonsense") {
		t.Error(out)
	}
	if _, err := a.run("upgrade-check -n other -o json"); err == nil {
		t.Error("no error")
	}
}

func TestNewer(t *testing.T) {
	defer func(v string) { version = v }(version)
	version = "1.2.3"
	for image, want := range map[string]bool{
		"example.org:5000/nodens:1.2.4": true, "example.org/nodens:v1.3.0@sha256:aa": true, "example.org/nodens:1.2.3": false,
		"example.org/nodens": false, "example.org:5000/nodens": false, "example.org/nodens:latest": false,
	} {
		if got := newer(image); got != want {
			t.Errorf("%s: %t", image, got)
		}
	}
}
