package deploy

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiServer is the part of an API server that Helm needs to render a chart: its
// version, its APIs, and objects by path.
type apiServer struct {
	groups  []string // GROUP/VERSION
	objects map[string]any
}

func (s apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	reply := s.objects[r.URL.Path]
	resources := func(groupVersion string, kinds ...string) any {
		list := meta.APIResourceList{TypeMeta: meta.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion}
		for _, kind := range kinds {
			list.APIResources = append(list.APIResources, meta.APIResource{Name: strings.ToLower(kind) + "s", Kind: kind, Namespaced: true, Verbs: meta.Verbs{"get", "list"}})
		}
		return list
	}
	switch r.URL.Path {
	case "/version":
		reply = map[string]string{"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
	case "/api":
		reply = meta.APIVersions{TypeMeta: meta.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case "/apis":
		reply = s.groupList()
	case "/api/v1":
		reply = resources("v1", "ConfigMap", "Service", "ServiceAccount")
	case "/apis/apps/v1":
		reply = resources("apps/v1", "DaemonSet")
	case "/apis/rbac.authorization.k8s.io/v1":
		reply = resources("rbac.authorization.k8s.io/v1", "Role", "RoleBinding")
	case "/apis/cilium.io/v2":
		reply = resources("cilium.io/v2", "CiliumEndpoint")
	}
	if reply == nil {
		w.WriteHeader(http.StatusNotFound)
		reply = meta.Status{TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure, Reason: meta.StatusReasonNotFound, Code: http.StatusNotFound}
	}
	_ = json.NewEncoder(w).Encode(reply)
}

func (s apiServer) groupList() meta.APIGroupList {
	list := meta.APIGroupList{TypeMeta: meta.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, gv := range s.groups {
		group, version, _ := strings.Cut(gv, "/")
		v := meta.GroupVersionForDiscovery{GroupVersion: gv, Version: version}
		list.Groups = append(list.Groups, meta.APIGroup{Name: group, Versions: []meta.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	return list
}

// template renders the chart as helm install and helm upgrade do: with the cluster's
// APIs and objects.
func (s apiServer) template(t *testing.T, values string) (string, error) {
	t.Helper()
	return template("--dry-run=server", "--is-upgrade", "--disable-openapi-validation", "--kubeconfig", s.kubeconfig(t), "--set", values)
}

// kubeconfig starts the server and returns a file that names it.
func (s apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "`+server.URL+`"}}], "users": [{"name": "c", "user": {}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`)
}

// usedGroups are the API groups of the chart's objects.
var usedGroups = []string{"apps/v1", "rbac.authorization.k8s.io/v1"}

// TestTierOfCluster checks that Helm finds Cilium among the cluster's APIs.
func TestTierOfCluster(t *testing.T) {
	for api, want := range map[string]bool{"discovery.k8s.io/v1": false, "cilium.io/v2": true} {
		out, err := apiServer{groups: append(usedGroups, api)}.template(t, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out, "redirect auto"); got != want {
			t.Errorf("with %s: redirection is wanted: %t", api, got)
		}
	}
}

// TestStubDomainsInNotes checks that helm install names the server blocks of CoreDNS.
func TestStubDomainsInNotes(t *testing.T) {
	t.Setenv("HELM_DRIVER", "memory")
	t.Setenv("HELM_MEMORY_DRIVER_DATA", writeFile(t, filepath.Join(t.TempDir(), "releases"), "[]"))
	for corefile, want := range map[string]bool{
		".:53 {\n    forward . /etc/resolv.conf\n}\nimport custom/*.server\n":                       false,
		".:53 {\n    forward . /etc/resolv.conf\n}\ncorp.example:53 {\n    forward . 10.1.2.3\n}\n": true,
	} {
		s := apiServer{groups: usedGroups, objects: map[string]any{
			"/api/v1/namespaces/kube-system/configmaps/coredns": map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]string{"name": "coredns", "namespace": "kube-system"}, "data": map[string]string{"Corefile": corefile}},
		}}
		out, err := command(".", helm, "install", "nodens", chart, "--namespace", "kube-system", "--dry-run=server", "--disable-openapi-validation", "--kubeconfig", s.kubeconfig(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out, "server blocks of its own:\n  corp.example:53\n"); got != want || strings.Contains(out, "custom/") {
			t.Errorf("with %q, the notes name its block: %t\n%s", corefile, got, out[strings.Index(out, "NOTES:"):])
		}
	}
}

// TestFamilyInNotes checks that helm install warns about a cluster with IPv6 if nodens
// has an IPv4 address only.
func TestFamilyInNotes(t *testing.T) {
	t.Setenv("HELM_DRIVER", "memory")
	t.Setenv("HELM_MEMORY_DRIVER_DATA", writeFile(t, filepath.Join(t.TempDir(), "releases"), "[]"))
	for _, c := range []struct {
		clusterIP, local string
		want             bool
	}{
		{"10.96.0.10", "169.254.20.10", false},
		{"fd10:96::a", "169.254.20.10", true},
		{"fd10:96::a", "fd00:53::10", false},
		{"fd10:96::a", `169.254.20.10\,fd00:53::10`, false},
	} {
		s := apiServer{groups: usedGroups, objects: map[string]any{
			"/api/v1/namespaces/kube-system/services/kube-dns": map[string]any{"apiVersion": "v1", "kind": "Service",
				"metadata": map[string]string{"name": "kube-dns", "namespace": "kube-system"}, "spec": map[string]string{"clusterIP": c.clusterIP}},
		}}
		out, err := command(".", helm, "install", "nodens", chart, "--namespace", "kube-system", "--dry-run=server", "--disable-openapi-validation",
			"--kubeconfig", s.kubeconfig(t), "--set", "config.localDns="+c.local)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out, "WARNING: the Service kube-system/kube-dns has the cluster IP fd10:96::a"); got != c.want {
			t.Errorf("cluster IP %s, local address %s: a warning: %t\n%s", c.clusterIP, c.local, got, out[strings.Index(out, "NOTES:"):])
		}
	}
}

// TestPinsAreNotStranded checks that the chart refuses the tier minimal while nodes may
// have pinned programs, and accepts it once redirection was turned off everywhere.
func TestPinsAreNotStranded(t *testing.T) {
	const nodes = 3
	rolledOut := apps.DaemonSetStatus{ObservedGeneration: 7, DesiredNumberScheduled: nodes, UpdatedNumberScheduled: nodes, NumberAvailable: nodes}
	behind, unseen := rolledOut, rolledOut
	behind.NumberAvailable--
	unseen.ObservedGeneration--
	for _, c := range []struct {
		name, from string // values of the release that runs
		status     apps.DaemonSetStatus
		to         string
		refused    bool
	}{
		{"redirection", "tier=full", rolledOut, "tier=minimal", true},
		{"by the default", "tier=full,redirect.mode=on", rolledOut, "", true},
		{"one node left", "tier=full,redirect.mode=off", behind, "tier=minimal", true},
		{"not begun", "tier=full,redirect.mode=off", unseen, "tier=minimal", true},
		{"off everywhere", "tier=full,redirect.mode=off", rolledOut, "tier=minimal", false},
		{"never", "tier=minimal", behind, "tier=minimal", false},
		{"other tier", "tier=full", rolledOut, "tier=resilient", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := mustTemplate(t, "--set", c.from)
			set := get[*apps.DaemonSet](t, all)
			set.Generation, set.Status = 7, c.status
			out, err := apiServer{groups: usedGroups, objects: map[string]any{
				"/apis/apps/v1/namespaces/kube-system/daemonsets/nodens": set,
				"/api/v1/namespaces/kube-system/configmaps/nodens":       all["ConfigMap/nodens"],
			}}.template(t, c.to)
			if (err != nil) != c.refused {
				t.Fatalf("error %v\n%s", err, out)
			}
			if c.refused && (!strings.Contains(err.Error(), "redirect.mode=off") || !strings.Contains(err.Error(), "deploy/teardown.yaml")) {
				t.Errorf("the error does not say what to do: %v", err)
			}
		})
	}
}
