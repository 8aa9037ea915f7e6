package robustness

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"byre/e2e/robustness/history"
	"byre/e2e/robustness/traffic"
)

// options are those of the traffic in every episode.
var options = traffic.Options{Keys: 6, Writers: 2, Watchers: 2, Pause: 10 * time.Millisecond, Timeout: 5 * time.Second}

// RunFault runs a fault under traffic and judges it. Violations fail the test; the history that led
// to them is kept in the folder out. The result is nil if there is none.
func RunFault(t *testing.T, e *Env, f Fault, out string) *Result {
	t.Helper()
	o := options
	o.Seed, o.NoTouch = rand.Uint64(), e.NoTouch
	p := &episode{Env: e, fault: f, namespace: fmt.Sprintf("episode-%d", o.Seed)}
	result, h, err := p.run(t.Context(), o)
	if err != nil {
		t.Errorf("%s: %v", f.Name, err)
		for _, r := range e.Replicas {
			if r.Server != nil {
				t.Logf("%s logged:\n%s", r.Name, r.Server.LogTail())
			}
		}
	}
	if result == nil {
		return nil
	}
	t.Logf("%s on %s: %d operations, %d acknowledged writes, %d events, unavailable %.2f s, recovery %.2f s, errors %v, informers after %.2f s, lost %d writes of the last %.2f s",
		f.Name, e.Database.Kind, result.Operations, result.Acknowledged, result.Events, result.Unavailable.Seconds(),
		result.Recovery.Seconds(), result.Errors, result.Informers.Seconds(), result.Lost, result.LostFor.Seconds())
	for _, v := range result.Violations {
		t.Errorf("%s: %s", f.Name, v)
	}
	if t.Failed() {
		saveHistory(t, h, filepath.Join(out, p.namespace+".json"))
	}
	return result
}

// saveHistory keeps what led to a failure.
func saveHistory(t *testing.T, h *history.History, path string) {
	t.Helper()
	text, err := json.Marshal(h)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	t.Logf("the history is in %s (%v)", path, err)
}
