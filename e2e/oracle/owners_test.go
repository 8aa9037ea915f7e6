package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// shadowed is a built-in resource that both servers get a definition over.
type shadowed struct {
	group, version, plural string
	namespaced             bool
	kind                   string // of the definition
}

func (s shadowed) name() string { return s.plural + "." + s.group }

func (s shadowed) path(version string) string {
	path := "/apis/" + s.group + "/" + version
	if s.namespaced {
		path += "/namespaces/custom"
	}
	return path + "/" + s.plural
}

func (s shadowed) definition() string {
	scope := "Cluster"
	if s.namespaced {
		scope = "Namespaced"
	}
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[1]s
  annotations: {api-approved.kubernetes.io: "unapproved, x"}
spec:
  group: %[2]s
  scope: %[3]s
  names: {plural: %[4]s, singular: %[5]s, kind: %[6]s, listKind: %[6]sList}
  versions:
  - {name: %[7]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v77, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
`, s.name(), s.group, scope, s.plural, "over"+s.plural, s.kind, s.version)
}

func (s shadowed) object(version string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/%s","kind":%q,"metadata":{"name":"over"}}`, s.group, version, s.kind)
}

// compareOwners creates a definition with the group and the name of each built-in resource,
// deletes it, and checks that the built-in objects keep their UIDs. A stock server keeps the
// objects of both under different keys in etcd, except definitions and APIServices, which are
// left out: these have the keys that instances of a definition have.
func compareOwners(t *testing.T, stock, byre *peer) {
	all := append(served(t, stock), shadowed{
		// No server serves this group by default, so that it is the definition's alone.
		group: "internal.apiserver.k8s.io", version: "v1alpha1", plural: "storageversions", kind: "OverStorageVersion",
	})
	if len(all) < 40 {
		t.Fatalf("%d resources to make definitions over", len(all))
	}
	before := [2]map[string]string{objectsOf(t, stock, all), objectsOf(t, byre, all)}
	inParallel(t, all, func(s shadowed) error {
		return onBoth(stock, byre, func(p *peer) error {
			return errors.Join(
				p.expect(t.Context(), http.StatusCreated,
					request{method: http.MethodPost, path: definitionsPath, contentType: "application/yaml", body: s.definition()}),
				p.awaitDefinition(t.Context(), s.name(), decided))
		})
	})
	inParallel(t, all, func(s shadowed) error {
		for _, r := range overlapping(s) {
			compare(t, stock, byre, r)
		}
		return nil
	})
	inParallel(t, all, func(s shadowed) error {
		err := onBoth(stock, byre, func(p *peer) error { return p.deleteDefinition(t.Context(), s.name()) })
		compare(t, stock, byre,
			request{name: "list after the definition of " + s.name(), path: s.path(s.version), normalize: normalizeKind,
				settles: true})
		return err
	})
	for i, p := range []*peer{stock, byre} {
		after := objectsOf(t, p, all)
		for object, uid := range before[i] {
			if after[object] != uid {
				t.Errorf("%s: %s had the uid %s, and has %q", p.server.URL, object, uid, after[object])
			}
		}
	}
}

// inParallel calls do for all, a few at a time: both servers take long for one definition,
// and handle several at a time.
func inParallel(t *testing.T, all []shadowed, do func(shadowed) error) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(asking)
	for _, s := range all {
		group.Go(func() error { return do(s) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// overlapping are the requests of which a definition might answer some.
func overlapping(s shadowed) []request {
	requests := []request{{name: "definition over " + s.name(), path: definitionsPath + "/" + s.name(),
		normalize: normalizeDefinition, settles: true}}
	for _, version := range []string{s.version, "v77"} {
		at, as := s.path(version), s.name()+" in "+version
		requests = append(requests,
			request{name: "list " + as, path: at, normalize: normalizeKind, settles: true},
			request{name: "create one of " + as, method: http.MethodPost, path: at, body: s.object(version)},
			request{name: "get one of " + as, path: at + "/over"},
			request{name: "delete one of " + as, method: http.MethodDelete, path: at + "/over"},
		)
	}
	return requests
}

// normalizeKind keeps only the kind of a list, since the two servers have different objects.
func normalizeKind(body any) any {
	if object, ok := body.(map[string]any); ok && object["items"] != nil {
		return fmt.Sprint(object["apiVersion"], " ", object["kind"])
	}
	return body
}

// served returns the resources of all groups whose name has a dot, as a definition's group
// must.
func served(t *testing.T, p *peer) (all []shadowed) {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Versions []struct {
				Version   string
				Resources []struct {
					Resource, Scope string
				}
			}
		}
	}
	p.decode(t, request{path: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		&list)
	for _, group := range list.Items {
		name := group.Metadata.Name
		if !strings.Contains(name, ".") || name == "apiextensions.k8s.io" || name == "apiregistration.k8s.io" {
			continue
		}
		var seen []string
		for _, version := range group.Versions {
			for _, r := range version.Resources {
				if slices.Contains(seen, r.Resource) {
					continue
				}
				seen = append(seen, r.Resource)
				all = append(all, shadowed{
					group: name, version: version.Version, plural: r.Resource,
					namespaced: r.Scope == "Namespaced", kind: "Over" + fmt.Sprint(len(all)),
				})
			}
		}
	}
	return all
}

// objectsOf returns the UIDs of the objects of built-in resources. Objects that a server
// renews by itself are left out.
func objectsOf(t *testing.T, p *peer, all []shadowed) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, s := range all {
		var list struct {
			Items []struct {
				Metadata struct{ Namespace, Name, UID string }
			}
		}
		if s.plural == "leases" || s.plural == "events" {
			continue
		}
		p.decode(t, request{path: "/apis/" + s.group + "/" + s.version + "/" + s.plural}, &list)
		for _, o := range list.Items {
			found[s.name()+" "+o.Metadata.Namespace+"/"+o.Metadata.Name] = o.Metadata.UID
		}
	}
	return found
}

// decode decodes the body of an answer with status 200 into a value. Other answers leave the
// value as it is.
func (p *peer) decode(t *testing.T, r request, into any) {
	t.Helper()
	req, err := p.request(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		if err := json.NewDecoder(res.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
}
