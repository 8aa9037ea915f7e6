package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"byre/e2e/servers"
)

// seatObjects is how many objects of each resource are listed: more than two pages,
// and together more than the megabyte at which the cost of a cached list ends.
const seatObjects = 500

// charged is a resource whose lists are charged.
type charged struct {
	group, resource string
	path            string // below which its objects are
	object          func(name string) string
	// sizes reports whether the average sizes that the two servers estimate for the same
	// objects are plausible together.
	sizes func(stock, byre float64) bool
}

func chargedResources() []charged {
	value := strings.Repeat("x", 4000)
	return []charged{
		{
			// The test creates all objects of this resource: their number and size are known.
			group: "apps", resource: "controllerrevisions", path: "/apis/apps/v1/namespaces/seats/controllerrevisions",
			object: func(name string) string {
				return fmt.Sprintf(`{"metadata":{"name":%q},"revision":1,"data":{"value":%q}}`, name, value)
			},
			// A stock server stores built-in objects as protobuf, byre as JSON, which
			// also has the names of the fields. The limits below are such that a page
			// of either size takes the same number of seats, of 100 kB each.
			sizes: func(stock, byre float64) bool { return stock < byre && byre < 1.05*stock },
		},
		{
			group: "seats.example.com", resource: "ledgers", path: "/apis/seats.example.com/v1/namespaces/seats/ledgers",
			object: func(name string) string {
				return fmt.Sprintf(`{"apiVersion":"seats.example.com/v1","kind":"Ledger","metadata":{"name":%q},"value":%q}`, name,
					value)
			},
			// Both servers store the same JSON.
			sizes: func(stock, byre float64) bool { return stock == byre },
		},
	}
}

const ledgers = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ledgers.seats.example.com}
spec:
  group: seats.example.com
  scope: Namespaced
  names: {plural: ledgers, singular: ledger, kind: Ledger, listKind: LedgerList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {value: {type: string}}}}}
`

// compareSeats compares the seats that priority and fairness charges for lists of
// users whom it is not exempt: alice, and a service account, whose priority level
// lets a request have more seats. Both servers estimate by the number of objects and
// their average size. A stock server counts every now and then: it is waited for.
func compareSeats(t *testing.T, stock, byre *peer) {
	defineOnBoth(t, stock, byre, ledgers)
	users := map[string]request{
		"alice":             {token: servers.AliceToken},
		"a service account": {header: http.Header{"Impersonate-User": {"system:serviceaccount:seats:lister"}}},
	}
	for _, p := range []*peer{stock, byre} {
		p.allowLists(t)
	}
	for _, r := range chargedResources() {
		if err := onBoth(stock, byre, func(p *peer) error { return p.createMany(t.Context(), r) }); err != nil {
			t.Fatal(err)
		}
		// A stock server may have the sizes of some objects only when it first has their
		// number. It estimates once a minute.
		poll(t, func() error {
			theirs, err := stock.averageSize(t.Context(), r)
			if err != nil {
				return err
			}
			ours, err := byre.averageSize(t.Context(), r)
			if err != nil {
				return err
			}
			if !r.sizes(theirs, ours) {
				return fmt.Errorf("%s: objects of %.0f bytes in kube-apiserver, of %.0f in byre", r.resource, theirs, ours)
			}
			t.Logf("%s: objects of %.0f bytes in kube-apiserver, of %.0f in byre", r.resource, theirs, ours)
			return nil
		})
		for user, as := range users {
			compareCharges(t, stock, byre, user+": "+r.resource, func(p *peer) error {
				for _, query := range []string{
					"", "resourceVersion=0", "limit=50&resourceVersion=0", "limit=200",
					"limit=50&labelSelector=a%3Db", "fieldSelector=metadata.name%3Dseat-100",
				} {
					as.path = r.path + "?" + query
					if _, err := p.list(t.Context(), as); err != nil {
						return err
					}
				}
				as.path = r.path + "?limit=110"
				return p.listPages(t.Context(), as)
			})
		}
	}
}

// compareCharges compares what two servers charge for the requests that ask sends.
func compareCharges(t *testing.T, stock, byre *peer, name string, ask func(*peer) error) {
	t.Helper()
	// The gauges that averageSize reads are set just before the estimator's own counts.
	poll(t, func() error {
		want, err := stock.charges(t.Context(), ask)
		if err != nil {
			return err
		}
		got, err := byre.charges(t.Context(), ask)
		if err != nil {
			return err
		}
		if !maps.Equal(want, got) || len(want) == 0 {
			return fmt.Errorf("%s: kube-apiserver charges %v, byre %v", name, want, got)
		}
		t.Logf("%s: %v", name, got)
		return nil
	})
}

// poll calls condition until it returns nil.
func poll(t *testing.T, condition func() error) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

// allowLists lets alice and the service account list.
func (p *peer) allowLists(t *testing.T) {
	t.Helper()
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	for path, body := range map[string]string{
		"/api/v1/namespaces": `{"metadata":{"name":"seats"}}`,
		rbac + "clusterroles": `{"metadata":{"name":"seats"},"rules":[
			{"apiGroups":["apps","seats.example.com"],"resources":["controllerrevisions","ledgers"],"verbs":["list"]}]}`,
		rbac + "clusterrolebindings": `{"metadata":{"name":"seats"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"seats"},
			"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"alice"},{"kind":"ServiceAccount","namespace":"seats","name":"lister"}]}`,
	} {
		p.must(t, http.StatusCreated, request{method: http.MethodPost, path: path, body: body})
	}
	poll(t, func() error {
		for _, r := range chargedResources() {
			if _, err := p.list(t.Context(), request{path: r.path, token: servers.AliceToken}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *peer) createMany(ctx context.Context, r charged) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range seatObjects {
		group.Go(func() error {
			_, err := p.raw(ctx, http.StatusCreated,
				request{method: http.MethodPost, path: r.path, body: r.object(fmt.Sprintf("seat-%03d", i))})
			return err
		})
	}
	return group.Wait()
}

// averageSize returns the average size of a resource's objects as the server estimates
// it, or an error until the server has counted all of them.
func (p *peer) averageSize(ctx context.Context, r charged) (float64, error) {
	body, err := p.raw(ctx, http.StatusOK, request{path: strings.Replace(r.path, "/namespaces/seats", "", 1)})
	if err != nil {
		return 0, err
	}
	var list struct{ Items []struct{} }
	if err := json.Unmarshal(body, &list); err != nil {
		return 0, err
	}
	text, err := p.raw(ctx, http.StatusOK, request{path: "/metrics", accept: "text/plain"})
	if err != nil {
		return 0, err
	}
	labels := fmt.Sprintf(`{group=%q,resource=%q}`, r.group, r.resource)
	objects := samples(string(text), "apiserver_resource_objects")[labels]
	if int(objects) != len(list.Items) {
		return 0, fmt.Errorf("%s: %.0f of %d %s are counted", p.server.URL, objects, len(list.Items), r.resource)
	}
	return samples(string(text), "apiserver_resource_size_estimate_bytes")[labels] / objects, nil
}

// charges returns by how much the server's histograms of seats, by flow schema and priority
// level, grow while ask sends its requests.
func (p *peer) charges(ctx context.Context, ask func(*peer) error) (map[string]float64, error) {
	read := func() (map[string]float64, error) {
		text, err := p.raw(ctx, http.StatusOK, request{path: "/metrics", accept: "text/plain"})
		if err != nil {
			return nil, err
		}
		all := map[string]float64{}
		for _, of := range []string{"sum", "bucket"} {
			for labels, value := range samples(string(text), "apiserver_flowcontrol_work_estimated_seats_"+of) {
				if !strings.Contains(labels, `priority_level="exempt"`) {
					all[of+labels] = value
				}
			}
		}
		return all, nil
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	if err := ask(p); err != nil {
		return nil, err
	}
	after, err := read()
	if err != nil {
		return nil, err
	}
	for name := range after {
		if after[name] -= before[name]; after[name] == 0 {
			delete(after, name)
		}
	}
	return after, nil
}

// samples are the values of a metric by their labels.
func samples(text, metric string) map[string]float64 {
	all := map[string]float64{}
	for _, match := range regexp.MustCompile(`(?m)^`+metric+`(\{.*\}) (\S+)$`).FindAllStringSubmatch(text, -1) {
		if value, err := strconv.ParseFloat(match[2], 64); err == nil {
			all[match[1]] = value
		}
	}
	return all
}

// list asks for a list, and returns the token by which it continues.
func (p *peer) list(ctx context.Context, r request) (token string, err error) {
	body, err := p.raw(ctx, http.StatusOK, r)
	if err != nil {
		return "", err
	}
	var list struct{ Metadata struct{ Continue string } }
	err = json.Unmarshal(body, &list)
	return list.Metadata.Continue, err
}

func (p *peer) listPages(ctx context.Context, r request) error {
	for first := r.path; ; {
		token, err := p.list(ctx, r)
		if err != nil || token == "" {
			return err
		}
		r.path = first + "&continue=" + url.QueryEscape(token)
	}
}

// raw returns the body of an answer that must have the status.
func (p *peer) raw(ctx context.Context, status int, r request) (_ []byte, err error) {
	req, err := p.request(ctx, r)
	if err != nil {
		return nil, err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != status {
		err = fmt.Errorf("%s: %s: %.300s", r.path, res.Status, body)
	}
	return body, err
}
