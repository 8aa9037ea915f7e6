package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"byre/sqlstore/storetest"
)

// flowTokens has tokens of a user, whose requests share the level "global-default" with
// those of all users, and of a service account, whose level is "workload-low".
func flowTokens(t *testing.T) string {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	users := "flooder,ada,1\nothers,system:serviceaccount:default:default,2,\"system:serviceaccounts\"\n"
	if err := os.WriteFile(tokens, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	return tokens
}

// floodTimeout keeps the server from ending the requests of a flood while the test runs.
const floodTimeout = "--request-timeout=10m"

// flood is many requests that occupy a server's seats and almost no processor: their bodies
// do not end.
type flood struct {
	pending sync.WaitGroup
	end     context.CancelFunc
	// refused counts the answers with 429 and Retry-After; wrong is an answer of another
	// kind.
	refused atomic.Int64
	wrong   atomic.Pointer[string]
}

func startFlood(t *testing.T, config *rest.Config, method, path string, requests int) *flood {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &flood{end: cancel}
	client := anonymous()
	for range requests {
		body, _ := io.Pipe()
		// The client waits for the goroutine that reads this body.
		context.AfterFunc(ctx, func() { body.Close() })
		request, err := http.NewRequestWithContext(ctx, method, config.Host+path, io.MultiReader(strings.NewReader(`{"metadata":`), body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+config.BearerToken)
		request.Header.Set("Content-Type", "application/json")
		f.pending.Go(func() {
			response, err := client.Do(request)
			if err != nil {
				return // the server held it until the end
			}
			defer response.Body.Close()
			if ctx.Err() != nil {
				return // the answer is to a body that ended
			}
			if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") != "" {
				f.refused.Add(1)
				return
			}
			wrong := fmt.Sprintf("%s, Retry-After %q", response.Status, response.Header.Get("Retry-After"))
			f.wrong.Store(&wrong)
		})
	}
	t.Cleanup(func() {
		cancel()
		f.pending.Wait()
	})
	return f
}

// full waits until the server refuses requests of the flood.
func (f *flood) full(t *testing.T) {
	t.Helper()
	storetest.EventuallyDone(t, "a refused request", func(context.Context) (bool, error) { return f.refused.Load() > 0, nil })
}

// p99 returns the 99th percentile of the latency of many reads, each of which must succeed.
func p99(t *testing.T, config *rest.Config) time.Duration {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for range 500 {
		started := time.Now()
		status, body, err := fetch(t.Context(), client, config.Host+"/api/v1/namespaces/default")
		if err != nil || status != http.StatusOK {
			t.Fatalf("%d %s, %v", status, body, err)
		}
		took = append(took, time.Since(started))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// TestFlowControl_FloodHardlyAffectsOthers: the server refuses the requests of a client
// that floods it, and the latency of other clients hardly changes.
func TestFlowControl_FloodHardlyAffectsOthers(t *testing.T) {
	server := startServer(t, t.TempDir(), "--token-auth-file", flowTokens(t), "--authorization-mode=AlwaysAllow",
		"--max-requests-inflight=40", "--max-mutating-requests-inflight=20", floodTimeout)
	flooder, others := withToken(server.config(t), "flooder"), withToken(server.config(t), "others")
	// Other processes use the machine too: compare the best of some rounds.
	quiet, flooded := time.Hour, time.Hour
	for range 3 {
		quiet = min(quiet, p99(t, others))
	}
	f := startFlood(t, flooder, http.MethodPost, configMaps, 1000)
	f.full(t)
	for range 3 {
		flooded = min(flooded, p99(t, others))
	}
	f.end()
	f.pending.Wait()
	if wrong := f.wrong.Load(); wrong != nil {
		t.Errorf("a request of the flood is answered with %s", *wrong)
	}
	t.Logf("of the flood %d were turned away; p99 of others %v, before %v", f.refused.Load(), flooded, quiet)
	// A read that has to wait for a seat of the flood waits until the flood ends, or is
	// refused. Shorter differences come from other processes.
	if flooded > quiet+5*time.Second {
		t.Errorf("p99 of others is %v, before the flood it was %v", flooded, quiet)
	}
	if _, metrics := server.mustGet(t, "/metrics"); !strings.Contains(metrics, `apiserver_flowcontrol_rejected_requests_total{flow_schema="global-default",priority_level="global-default"`) {
		t.Error("the metrics don't say who was turned away")
	}
}

// TestFlowControl_MaxInFlightWithoutFairness: without priority and fairness there is one
// limit for reads and one for writes, and none for watches.
func TestFlowControl_MaxInFlightWithoutFairness(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "--token-auth-file", flowTokens(t), "--authorization-mode=AlwaysAllow",
		"--enable-priority-and-fairness=false", "--max-requests-inflight=5", "--max-mutating-requests-inflight=5", "--controllers=", floodTimeout)
	flooder := withToken(server.config(t), "flooder")
	client, err := rest.HTTPClientFor(flooder)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, flooder.Host+configMaps+"?watch=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer flooder")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("a watch is answered with %s", response.Status)
		}
	}
	f := startFlood(t, flooder, http.MethodPost, configMaps, 50)
	f.full(t)
	p99(t, withToken(server.config(t), "others")) // reads are still answered
	storetest.EventuallyDone(t, "45 refused requests", func(context.Context) (bool, error) { return f.refused.Load() == 45, nil })
	if status, answer := (hostile{body: `{"metadata":{"name":"late"}}`}).send(t, flooder); status != http.StatusTooManyRequests {
		t.Errorf("one more write is answered with %d %s", status, answer)
	}
	f.end()
	f.pending.Wait()
	if wrong := f.wrong.Load(); wrong != nil {
		t.Errorf("a request of the flood is answered with %s", *wrong)
	}
	storetest.EventuallyDone(t, "a request after the flood is answered", func(context.Context) (bool, error) {
		status, _ := (hostile{body: `{"metadata":{"name":"after"}}`}).send(t, flooder)
		return status == http.StatusCreated, nil
	})
}
