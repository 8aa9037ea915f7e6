package oracle

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.APIServer, programs.Etcd, programs.Byre))
}

// emulated is the release that both servers emulate; their own where empty.
var emulated = flag.String("emulated", "", "the release that both servers emulate, as in 1.36")

// A request and the name it goes by in the table of differences.
type request struct {
	name   string
	method string // GET where empty
	path   string // with the query, as it goes over the wire
	token  string // the admin's where empty; "none" sends none
	accept string // JSON where empty; "none" sends none
	// contentType of the body; JSON where empty, "none" sends none.
	contentType string
	header      http.Header
	body        string
	// events is how many events to read of a watch.
	events int
	// normalize removes differences of the body that only this request's answers may have.
	normalize func(body any) any
	// settles is set if the answers may become the same only after a while.
	settles bool
	// inNextSecond is set if the request must not be in the same second as the one before
	// it. Managers of fields are in the order of the second of their last change, and then of
	// their names; the oldest are joined.
	inNextSecond bool
}

// answer is a server's answer to a request, normalized.
type answer struct {
	status int
	header map[string]string
	body   any // decoded JSON, or text
}

// TestAnswers_EqualStock sends the requests of every table to both servers, with byre on each
// kind of database. With E2E_STOCK set the second server is a stock one, too: a difference is
// then a fault of the comparison, which fails to normalize it.
func TestAnswers_EqualStock(t *testing.T) {
	if os.Getenv("E2E_STOCK") != "" {
		stock, err := startStock(t)
		if err != nil {
			t.Fatal(err)
		}
		other, err := startStock(t)
		if err != nil {
			t.Fatal(err)
		}
		compareAll(t, stock, other)
		return
	}
	for name, endpoint := range map[string]string{"sqlite": "", "postgres": pgtest.DSN(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stock, byre := startBoth(t, endpoint)
			compareAll(t, stock, byre)
		})
	}
}

func compareAll(t *testing.T, stock, byre *peer) {
	for _, table := range []struct {
		name     string
		requests []request
		// readOnly tables change nothing, so that their requests are sent concurrently.
		readOnly bool
	}{
		{name: "start", requests: atStart(), readOnly: true},
		{name: "control plane", requests: ofTheControlPlane()},
		{name: "objects", requests: objects(t)},
		{name: "reads", requests: reads()},
		{name: "writes", requests: writes()},
		{name: "release", requests: ofRelease()},
		{name: "bodies", requests: badBodies()},
		{name: "names", requests: badNames()},
		{name: "parameters of reads", requests: badReadParameters(), readOnly: true},
		{name: "parameters of writes", requests: badWriteParameters()},
		{name: "paths", requests: badPaths()},
		{name: "access", requests: access()},
		{name: "bad definitions", requests: badDefinitions()},
	} {
		t.Run(table.name, func(t *testing.T) {
			var group errgroup.Group
			group.SetLimit(1)
			if table.readOnly {
				group.SetLimit(asking)
			}
			for _, r := range table.requests {
				group.Go(func() error { compare(t, stock, byre, r); return nil })
			}
			_ = group.Wait() // compare reports by itself
		})
	}
	t.Run("checks", func(t *testing.T) { compareChecks(t, stock, byre) })
	for _, p := range []*peer{stock, byre} {
		p.must(t, http.StatusCreated,
			request{method: http.MethodPost, path: "/api/v1/namespaces", body: `{"metadata":{"name":"custom"}}`})
	}
	t.Run("owners", func(t *testing.T) { compareOwners(t, stock, byre) })
	t.Run("definitions", func(t *testing.T) { compareDefinitions(t, stock, byre) })
	t.Run("conversions", func(t *testing.T) { compareConversions(t, stock, byre) })
	t.Run("schemas", func(t *testing.T) { compareSchemas(t, stock, byre) })
	t.Run("seats", func(t *testing.T) { compareSeats(t, stock, byre) })
	t.Run("metrics", func(t *testing.T) { compareMetrics(t, stock, byre) })
	// This comes last: it leaves a definition.
	t.Run("managed fields", func(t *testing.T) {
		for _, r := range managedFields() {
			if r.settles { // The answers are alike where both servers don't serve the definition yet.
				stock.await(t, http.StatusOK, r)
				byre.await(t, http.StatusOK, r)
			}
			compare(t, stock, byre, r)
		}
	})
}

// peer is one of the two servers.
type peer struct {
	server  *servers.Server
	client  *http.Client
	isStock bool
}

// startBoth starts both servers at the same time.
func startBoth(t *testing.T, endpoint string, args ...string) (stock, byre *peer) {
	t.Helper()
	var group errgroup.Group
	group.Go(func() (err error) { stock, err = startStock(t, args...); return err })
	group.Go(func() (err error) { byre, err = startByre(t, endpoint, args...); return err })
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	// kubeadm makes these bindings beside a stock server; byre does so itself.
	for _, b := range [][4]string{
		{"kubeadm:cluster-admins", "cluster-admin", "Group", "kubeadm:cluster-admins"},
		{"kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", "User", "kube-apiserver-kubelet-client"},
	} {
		stock.must(t, http.StatusCreated, request{
			method: http.MethodPost, path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?fieldManager=kube-apiserver",
			body: fmt.Sprintf(
				`{"metadata":{"name":%q,"labels":{"kubernetes.io/bootstrapping":"rbac-defaults"},"annotations":{"rbac.authorization.kubernetes.io/autoupdate":"true"}},`+
					`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},`+
					`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":%q,"name":%q}]}`, b[0], b[1], b[2], b[3]),
		})
	}
	return stock, byre
}

// Neither server has the controllers that would make service accounts, or change
// objects while they are compared.
const noServiceAccounts = "--disable-admission-plugins=ServiceAccount"

// flagsOfBoth are the flags that both servers get beside args.
func flagsOfBoth(args ...string) []string {
	if *emulated != "" {
		args = append(args, "--emulated-version="+*emulated)
	}
	return append(args, noServiceAccounts)
}

func startByre(t *testing.T, endpoint string, args ...string) (*peer, error) {
	b, err := servers.Byre{
		Dir:      filepath.Join(t.TempDir(), "data"),
		Endpoint: endpoint,
		Args: append(flagsOfBoth("--controllers=", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
			args...),
	}.Start(t.Context())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Errorf("byre ended with: %v", err)
		}
		b.Report(t)
	})
	// Roles that a stock server does not have would be more in every list and count.
	client, err := kubernetes.NewForConfig(b.Config(servers.AdminToken))
	if err != nil {
		return nil, err
	}
	for _, role := range []string{"byre:console-user", "byre:history-viewer", "byre:sql-user"} {
		if err := client.RbacV1().ClusterRoles().Delete(t.Context(), role, metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
	}
	return newPeer(b)
}

// startStock starts a stock server that counts its objects every second or two,
// instead of every minute or two: that decides how it charges lists.
func startStock(t *testing.T, args ...string) (*peer, error) {
	s, err := servers.Stock{Dir: t.TempDir(),
		Args: append(flagsOfBoth("--etcd-count-metric-poll-period=1s"), args...)}.Start(t.Context())
	if err != nil {
		return nil, err
	}
	t.Cleanup(s.Kill)
	p, err := newPeer(s)
	if err == nil {
		p.isStock = true
	}
	return p, err
}

func newPeer(s *servers.Server) (*peer, error) {
	config, err := rest.TLSConfigFor(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAFile: s.CAFile}})
	if err != nil {
		return nil, err
	}
	return &peer{server: s, client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true},
		// A redirect is an answer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       patience,
	}}, nil
}

// ask sends a request and normalizes the answer. It asks again where a watch cache of the
// stock server is not ready, as clients do: each change of a definition makes new ones.
func (p *peer) ask(ctx context.Context, r request) (answer, error) {
	for begun := time.Now(); ; {
		a, err := p.askOnce(ctx, r)
		status, _ := a.body.(map[string]any)
		if err != nil || status["message"] != "storage is (re)initializing" || time.Since(begun) > patience {
			return a, err
		}
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (p *peer) askOnce(ctx context.Context, r request) (answer, error) {
	req, err := p.request(ctx, r)
	if err != nil {
		return answer{}, err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	var body []byte
	if r.events > 0 {
		body, err = readEvents(res.Body, r.events)
	} else {
		body, err = io.ReadAll(res.Body)
	}
	if err != nil {
		return answer{}, err
	}
	a := normalize(res, body)
	if r.normalize != nil {
		a.body = r.normalize(a.body)
	}
	return a, nil
}

// must sends a request on which the comparison depends, and fails the test unless the answer
// has the status.
func (p *peer) must(t *testing.T, status int, r request) {
	t.Helper()
	if err := p.expect(t.Context(), status, r); err != nil {
		t.Fatal(err)
	}
}

// expect is an error unless the answer has a status.
func (p *peer) expect(ctx context.Context, status int, r request) error {
	a, err := p.ask(ctx, r)
	if err == nil && a.status != status {
		err = fmt.Errorf("%s %s of %s: %d %s", r.method, r.path, p.server.URL, a.status, show(a.body))
	}
	return err
}

// onBoth calls do for both servers at once.
func onBoth(stock, byre *peer, do func(*peer) error) error {
	var group errgroup.Group
	for _, p := range []*peer{stock, byre} {
		group.Go(func() error { return do(p) })
	}
	return group.Wait()
}

func (p *peer) request(ctx context.Context, r request) (*http.Request, error) {
	method := r.method
	if method == "" {
		method = http.MethodGet
	}
	u, err := url.Parse(p.server.URL + r.path)
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.URL = u
	set := func(header, value, fallback string) {
		switch value {
		case "":
			req.Header.Set(header, fallback)
		case "none":
		default:
			req.Header.Set(header, value)
		}
	}
	set("Accept", r.accept, "application/json")
	if r.body != "" || r.contentType != "" {
		set("Content-Type", r.contentType, "application/json")
	}
	if r.token != "none" {
		token := r.token
		if token == "" {
			token = servers.AdminToken
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("User-Agent", "oracle")
	maps.Copy(req.Header, r.header)
	return req, nil
}

// readEvents reads lines of a watch.
func readEvents(r io.Reader, n int) ([]byte, error) {
	var all []byte
	buffer := make([]byte, 64<<10)
	for bytes.Count(all, []byte("\n")) < n {
		got, err := r.Read(buffer)
		all = append(all, buffer[:got]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("after %d events: %w", bytes.Count(all, []byte("\n")), err)
		}
	}
	// A read may have returned more events than were asked for.
	if lines := bytes.SplitAfter(all, []byte("\n")); len(lines) > n {
		return bytes.Join(lines[:n], nil), nil
	}
	return all, nil
}
