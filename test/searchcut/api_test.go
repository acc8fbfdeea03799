package searchcut

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// object is a Kubernetes object in JSON form.
type object map[string]any

// change is an event of a watch.
type change struct {
	Type   string `json:"type"`
	Object object `json:"object"`
}

// api is an API server with the lists and watches that CoreDNS's kubernetes plugin uses.
type api struct {
	mu      sync.Mutex
	version int
	objects map[string]map[string]object // by resource, then by namespace and name
	changes map[string][]change          // of a resource, the one with version n+1 is at logged[n]
	changed chan struct{}                // closed at the next change
}

func newAPI() *api {
	a := &api{objects: make(map[string]map[string]object), changes: make(map[string][]change), changed: make(chan struct{})}
	for _, r := range []string{"services", "namespaces", "pods", "endpointslices"} {
		a.objects[r] = make(map[string]object)
	}
	return a
}

// kinds are the names of the resources' types.
func kindOf(resource string) (kind, group string) {
	switch resource {
	case "services":
		return "Service", "v1"
	case "namespaces":
		return "Namespace", "v1"
	case "pods":
		return "Pod", "v1"
	}
	return "EndpointSlice", "discovery.k8s.io/v1"
}

// put creates or replaces an object. spec has its fields besides metadata.
func (a *api) put(resource, namespace, name string, labels map[string]string, fields object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, event := namespace+"/"+name, "ADDED"
	if a.objects[resource][key] != nil {
		event = "MODIFIED"
	}
	kind, group := kindOf(resource)
	o := object{"kind": kind, "apiVersion": group}
	for k, v := range fields {
		o[k] = v
	}
	meta := object{"name": name, "uid": key, "labels": labels}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	o["metadata"] = meta
	a.objects[resource][key] = o
	a.log(resource, change{event, o})
}

// remove deletes an object.
func (a *api) remove(resource, namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := namespace + "/" + name
	o := a.objects[resource][key]
	delete(a.objects[resource], key)
	a.log(resource, change{"DELETED", o})
}

// log adds a change. a.mu is held.
func (a *api) log(resource string, c change) {
	a.version++
	c.Object["metadata"].(object)["resourceVersion"] = strconv.Itoa(a.version)
	a.changes[resource] = append(a.changes[resource], c)
	close(a.changed)
	a.changed = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	if a.objects[resource] == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.FormValue("watch") == "" {
		a.list(w, resource)
		return
	}
	if r.FormValue("sendInitialEvents") == "true" {
		// As a server without the WatchList feature: the client lists instead.
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"sendInitialEvents is forbidden"}`)
		return
	}
	a.watch(w, r, resource)
}

func (a *api) list(w http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []object{}
	for _, o := range a.objects[resource] {
		items = append(items, o)
	}
	kind, group := kindOf(resource)
	_ = json.NewEncoder(w).Encode(object{"kind": kind + "List", "apiVersion": group,
		"metadata": object{"resourceVersion": strconv.Itoa(a.version)}, "items": items})
}

// watch sends the changes after a version until the client leaves.
func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string) {
	since, _ := strconv.Atoi(r.FormValue("resourceVersion"))
	flush := http.NewResponseController(w)
	for _ = flush.Flush(); ; _ = flush.Flush() {
		a.mu.Lock()
		var text strings.Builder
		for _, c := range a.changes[resource] {
			if v, _ := strconv.Atoi(c.Object["metadata"].(object)["resourceVersion"].(string)); v > since {
				_ = json.NewEncoder(&text).Encode(c)
			}
		}
		since = a.version
		changed := a.changed
		a.mu.Unlock()
		fmt.Fprint(w, text.String())
		_ = flush.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func (a *api) namespace(name string) { a.put("namespaces", "", name, nil, nil) }

// service creates a Service. ip is None for a headless one, a name for an ExternalName.
func (a *api) service(namespace, name, ip string) {
	spec := object{"clusterIP": ip, "clusterIPs": []string{ip}, "type": "ClusterIP", "ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}}}
	if strings.HasSuffix(ip, ".example") {
		spec = object{"type": "ExternalName", "externalName": ip}
	}
	a.put("services", namespace, name, nil, object{"spec": spec})
}

// endpoints sets the endpoints of a Service: host names and addresses in turn.
func (a *api) endpoints(namespace, service string, hosts ...string) {
	var all []object
	for i := 0; i < len(hosts); i += 2 {
		e := object{"addresses": []string{hosts[i+1]}, "conditions": object{"ready": true}}
		if hosts[i] != "" {
			e["hostname"] = hosts[i]
		}
		all = append(all, e)
	}
	a.put("endpointslices", namespace, service+"-1", map[string]string{"kubernetes.io/service-name": service}, object{
		"addressType": "IPv4", "endpoints": all, "ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}},
	})
}
