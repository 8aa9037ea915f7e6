package oracle

import (
	"bytes"
	"context"
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

	"k8s.io/client-go/rest"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

func TestMain(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	need := []programs.Program{programs.APIServer, programs.Etcd}
	if os.Getenv("E2E_STOCK") == "" {
		need = append(need, programs.Byre)
	}
	if err := programs.Build(ctx, need...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

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
	// even evens out what is special about the body of this answer.
	even func(body any) any
	// settles is set where the answers become the same only after a while.
	settles bool
}

// answer is what a server says to a request, evened out.
type answer struct {
	status int
	header map[string]string
	body   any // decoded JSON, or text
}

// TestAnswers puts every table to both servers, with byre on each of its databases.
// With E2E_STOCK set the second server is a stock one too: what differs then, the
// comparison does not even out.
func TestAnswers(t *testing.T) {
	if os.Getenv("E2E_STOCK") != "" {
		compareAll(t, startStock(t), startStock(t))
		return
	}
	t.Run("sqlite", func(t *testing.T) { compareAll(t, startStock(t), startByre(t, "")) })
	t.Run("postgres", func(t *testing.T) { compareAll(t, startStock(t), startByre(t, pgtest.DSN(t))) })
}

func compareAll(t *testing.T, stock, byre *peer) {
	for _, table := range []struct {
		name     string
		requests []request
	}{
		{"start", atStart()},
		{"control plane", ofTheControlPlane()},
		{"objects", objects(t)},
		{"reads", reads()},
		{"writes", writes()},
		{"bodies", badBodies()},
		{"names", badNames()},
		{"parameters", badParameters()},
		{"paths", badPaths()},
		{"access", access()},
		{"bad definitions", badDefinitions()},
	} {
		t.Run(table.name, func(t *testing.T) {
			for _, r := range table.requests {
				compare(t, stock, byre, r)
			}
		})
	}
	t.Run("checks", func(t *testing.T) { compareChecks(t, stock, byre) })
	for _, p := range []*peer{stock, byre} {
		p.must(t, http.StatusCreated, request{method: http.MethodPost, path: "/api/v1/namespaces", body: `{"metadata":{"name":"custom"}}`})
	}
	t.Run("owners", func(t *testing.T) { compareOwners(t, stock, byre) })
	t.Run("definitions", func(t *testing.T) { compareDefinitions(t, stock, byre) })
	t.Run("conversions", func(t *testing.T) { compareConversions(t, stock, byre) })
	t.Run("schemas", func(t *testing.T) { compareSchemas(t, stock, byre) })
	t.Run("seats", func(t *testing.T) { compareSeats(t, stock, byre) })
}

func compare(t *testing.T, stock, byre *peer, r request) {
	t.Helper()
	found, repeatable, err := askBoth(t.Context(), stock, byre, r)
	for tries := 0; err == nil && r.settles && len(found) > 0 && tries < 100; tries++ {
		time.Sleep(100 * time.Millisecond) // two servers' caches, of which nothing tells
		found, repeatable, err = askBoth(t.Context(), stock, byre, r)
	}
	// A server that finds several mistakes in a map names them in the map's order, which
	// changes from one answer to the next. Two servers that answer alike agree after a
	// few repetitions; what differs for another reason differs in all of them.
	for tries := 0; err == nil && repeatable && len(found) > 0 && expected[r.name] == "" && tries < 40; tries++ {
		found, repeatable, err = askBoth(t.Context(), stock, byre, r)
	}
	if err != nil {
		t.Errorf("%s: %v", r.name, err)
		return
	}
	reason, known := expected[r.name]
	switch {
	case known && len(found) == 0:
		t.Errorf("%s no longer differs: take it out of the table of differences (%s)", r.name, reason)
	case !known && len(found) > 0:
		t.Errorf("%s\n\t%s %.200s\n\t%s", r.name, r.method, r.path, strings.Join(found, "\n\t"))
	}
}

// askBoth puts a request to both servers and returns how their answers differ. The
// request is repeatable when neither server has changed anything for it: it is a dry
// run, or both servers refuse it. (Reads are not repeated: a stale one is a fault.)
func askBoth(ctx context.Context, stock, byre *peer, r request) (found []string, repeatable bool, err error) {
	want, err := stock.ask(ctx, r)
	if err != nil {
		return nil, false, fmt.Errorf("kube-apiserver: %w", err)
	}
	got, err := byre.ask(ctx, r)
	if err != nil {
		return nil, false, fmt.Errorf("byre: %w", err)
	}
	dry := strings.Contains(r.path, "dryRun=All") && want.status < 400 && got.status < 400
	refused := want.status >= 400 && want.status < 500 && got.status >= 400 && got.status < 500
	return differences(want, got), dry || refused, nil
}

// peer is one of the two servers.
type peer struct {
	server *servers.Server
	client *http.Client
}

func startByre(t *testing.T, endpoint string, args ...string) *peer {
	t.Helper()
	b, err := servers.Byre{
		Dir:      filepath.Join(t.TempDir(), "data"),
		Endpoint: endpoint,
		Args:     append([]string{"--disable-admission-plugins=ServiceAccount", "--controllers=", "--advertise-address=127.0.0.1"}, args...),
	}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Errorf("byre ended with: %v", err)
		}
		if t.Failed() {
			t.Logf("byre's log ends with:\n%s", b.LogTail())
		}
	})
	return newPeer(t, b)
}

// Neither server has the controllers that would make service accounts, or change
// objects while they are compared. The stock one counts its objects every second or
// two, instead of every minute or two: that decides how it charges lists.
func startStock(t *testing.T, args ...string) *peer {
	t.Helper()
	s, err := servers.Stock{Dir: t.TempDir(), Args: append([]string{"--disable-admission-plugins=ServiceAccount", "--etcd-count-metric-poll-period=1s"}, args...)}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return newPeer(t, s)
}

func newPeer(t *testing.T, s *servers.Server) *peer {
	t.Helper()
	config, err := rest.TLSConfigFor(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAFile: s.CAFile}})
	if err != nil {
		t.Fatal(err)
	}
	return &peer{server: s, client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true},
		// A redirect is an answer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       30 * time.Second,
	}}
}

func (p *peer) ask(ctx context.Context, r request) (answer, error) {
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
	a := evenOut(res, body)
	if r.even != nil {
		a.body = r.even(a.body)
	}
	return a, nil
}

// must asks what has to succeed for the comparison to mean something.
func (p *peer) must(t *testing.T, status int, r request) {
	t.Helper()
	a, err := p.ask(t.Context(), r)
	if err != nil || a.status != status {
		t.Fatalf("%s %s of %s: %d %s %v", r.method, r.path, p.server.URL, a.status, show(a.body), err)
	}
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
	// How many come at once is chance.
	if lines := bytes.SplitAfter(all, []byte("\n")); len(lines) > n {
		return bytes.Join(lines[:n], nil), nil
	}
	return all, nil
}
