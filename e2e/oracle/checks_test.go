package oracle

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// onlyStock are the health checks that only a stock server has, and onlyByre those that
// only byre has, with the reason.
var (
	onlyStock = map[string]string{
		"loopback-serving-certificate":                      "the server's own requests don't leave the process: there is no certificate that could expire",
		"poststarthook/storage-object-count-tracker-hook":   "objects are counted as they change: nothing counts them periodically",
		"poststarthook/peer-endpoint-reconciler-controller": "no server sends requests on to another: where the others are is in their identity Leases",
	}
	onlyByre = map[string]string{}
)

// compareChecks compares the lists of health checks.
func compareChecks(t *testing.T, stock, byre *peer) {
	met := map[string]bool{}
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		theirs, ours := checksOf(t, stock, path), checksOf(t, byre, path)
		for _, name := range theirs {
			if slices.Contains(ours, name) {
				continue
			}
			met[name] = true
			if onlyStock[name] == "" {
				t.Errorf("%s: byre has no check %s", path, name)
			}
		}
		for _, name := range ours {
			if slices.Contains(theirs, name) {
				continue
			}
			met[name] = true
			if onlyByre[name] == "" {
				t.Errorf("%s: a stock server has no check %s", path, name)
			}
		}
	}
	for _, table := range []map[string]string{onlyStock, onlyByre} {
		for name := range maps.Keys(table) {
			if !met[name] {
				t.Errorf("both servers have the check %s: take it out of the table", name)
			}
		}
	}
}

// checksOf returns the names of the checks at a path, all of which must pass.
func checksOf(t *testing.T, p *peer, path string) []string {
	t.Helper()
	a, err := p.ask(t.Context(), request{path: path + "?verbose"})
	if err != nil || a.status != http.StatusOK {
		t.Fatalf("%s of %s: %d %s, %v", path, p.server.URL, a.status, show(a.body), err)
	}
	text, ok := a.body.(string)
	if !ok {
		t.Fatalf("%s of %s: %s", path, p.server.URL, show(a.body))
	}
	var names []string
	for line := range strings.Lines(text) {
		if check, passed := strings.CutPrefix(line, "[+]"); passed {
			names = append(names, strings.Fields(check)[0])
		}
	}
	return names
}

// ofTheControlPlane are reads of what a server writes about itself, and of its status pages.
func ofTheControlPlane() []request {
	const structured = "application/json;v=v1beta1;g=config.k8s.io;as="
	return []request{
		{
			name: "identity Leases",
			path: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io/identity%3Dkube-apiserver",
			// A server writes its Lease after it is ready.
			settles: true, normalize: normalizeRenewals,
		},
		{
			name:    "legacy token tracking",
			path:    "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking",
			settles: true,
		},
		{name: "statusz", path: "/statusz", accept: structured + "Statusz", normalize: normalizeStatus},
		{name: "statusz in an unknown version", path: "/statusz", accept: "application/json;v=v9;g=config.k8s.io;as=Statusz"},
		{name: "statusz in protobuf", path: "/statusz", accept: "application/vnd.kubernetes.protobuf"},
		{name: "statusz for anybody", path: "/statusz", accept: "text/plain", token: "none"},
		{name: "flagz", path: "/flagz", accept: structured + "Flagz", normalize: normalizeFlags},
		{name: "flagz for anybody", path: "/flagz", accept: "text/plain", token: "none"},
		{name: "one check", path: "/readyz/etcd-readiness"},
		{name: "one part of a start", path: "/livez/poststarthook/start-apiextensions-controllers"},
		{name: "checks that are left out", path: "/livez?exclude=etcd&exclude=log"},
	}
}

// normalizeRenewals normalizes the fields of a Lease that are of one process.
func normalizeRenewals(body any) any {
	list, _ := body.(map[string]any)
	items, _ := list["items"].([]any)
	for _, item := range items {
		lease, _ := item.(map[string]any)
		spec, _ := lease["spec"].(map[string]any)
		holder, _ := spec["holderIdentity"].(string)
		metadata, _ := lease["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		spec["holderIdentity"] = strings.HasPrefix(holder, name+"_")
		// byre's name has the port, unless that is 6443: two servers may be on one host.
		metadata["name"] = strings.HasPrefix(name, "apiserver-")
	}
	return body
}

// normalizeStatus normalizes the build of the program, and when it was started.
func normalizeStatus(body any) any {
	if status, ok := body.(map[string]any); ok {
		for _, key := range []string{"goVersion", "binaryVersion", "startTime", "uptimeSeconds"} {
			if _, there := status[key]; there {
				status[key] = strings.ToUpper(key)
			}
		}
	}
	return body
}

// normalizeFlags keeps one flag alone: another test compares the flags' names and values.
func normalizeFlags(body any) any {
	if answer, ok := body.(map[string]any); ok {
		flags, _ := answer["flags"].(map[string]any)
		answer["flags"] = flags["profiling"]
	}
	return body
}
