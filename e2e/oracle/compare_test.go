package oracle

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// patience bounds each wait. It is long, since only a test that fails waits so long: on a
// loaded machine a stock server takes more than a minute to delete fifty definitions that
// are deleted together.
const patience = 5 * time.Minute

// compare sends a request to both servers and reports how their answers differ. A
// request in the table of differences must have different answers.
func compare(t *testing.T, stock, byre *peer, r request) {
	t.Helper()
	if r.inNextSecond {
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	}
	reason, known := expected[r.name]
	timeout := 2 * time.Minute
	if t.Failed() {
		timeout = time.Second
	}
	var found []string
	var err error
	if known {
		found, err = askBoth(t.Context(), stock, byre, r, nil)
	} else {
		found, err = askUntilAlike(t.Context(), stock, byre, r, timeout)
	}
	switch {
	case err != nil:
		t.Errorf("%s: %v", r.name, err)
	case known && len(found) == 0:
		t.Errorf("%s no longer differs: take it out of the table of differences (%s)", r.name, reason)
	case !known && len(found) > 0:
		t.Errorf("%s\n\t%s %.200s\n\t%s", r.name, r.method, r.path, strings.Join(found, "\n\t"))
	}
}

// askUntilAlike repeats a request while the answers differ: one that settles until the
// timeout, and one that changes nothing up to 40 times (see askBoth). It returns how the last
// answers differ.
func askUntilAlike(ctx context.Context, stock, byre *peer, r request, timeout time.Duration) ([]string, error) {
	var earlier answers
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); ; {
		found, err := askBoth(ctx, stock, byre, r, &earlier)
		switch {
		case err != nil || len(found) == 0:
			return nil, err
		case r.settles:
			if time.Since(begun) > timeout {
				return found, nil
			}
			<-tick.C // The servers' caches do not tell when they are current.
		case !earlier.repeatable || len(earlier.stock) == 40:
			return found, nil
		}
	}
}

// answers are what both servers have answered to one request so far.
type answers struct {
	stock, byre []answer
	// repeatable is true while no server has changed anything for the request.
	repeatable bool
}

// askBoth sends a request to both servers at once and returns how their answers
// differ. With earlier answers, to which it adds these, an answer is also compared
// with all that the other server has answered before: a server that finds several
// mistakes in a map names them in the map's order, which changes from one answer
// to the next. Earlier answers are only kept of a request that changes nothing (a
// dry run, or one that both servers refuse), and of none that settles or reads: a
// stale answer is a fault there.
func askBoth(ctx context.Context, stock, byre *peer, r request, earlier *answers) ([]string, error) {
	var theirs, ours answer
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if theirs, err = stock.ask(ctx, r); err != nil {
			err = fmt.Errorf("kube-apiserver: %w", err)
		}
		return err
	})
	group.Go(func() (err error) {
		if ours, err = byre.ask(ctx, r); err != nil {
			err = fmt.Errorf("byre: %w", err)
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	found := differences(theirs, ours)
	if len(found) == 0 || earlier == nil {
		return found, nil
	}
	dry := strings.Contains(r.path, "dryRun=All") && theirs.status < 400 && ours.status < 400
	if earlier.repeatable = !r.settles && (dry || isRefusal(theirs) && isRefusal(ours)); !earlier.repeatable {
		return found, nil
	}
	for i := range earlier.stock {
		if len(differences(earlier.stock[i], ours)) == 0 || len(differences(theirs, earlier.byre[i])) == 0 {
			return nil, nil
		}
	}
	earlier.stock, earlier.byre = append(earlier.stock, theirs), append(earlier.byre, ours)
	return found, nil
}

// isRefusal reports whether an answer's status is 4xx.
func isRefusal(a answer) bool {
	return a.status >= http.StatusBadRequest && a.status < http.StatusInternalServerError
}
