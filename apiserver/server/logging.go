package server

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"byre/sqlstore"
)

// logStream is the stream to which the log is written, in text or in JSON. Each Write is one line. It leaves out:
//   - in text and without -v, the information of upstream's packages about their own work. The log in JSON keeps it
//     for those who filter it by machine;
//   - without -v=2, errors that need nobody to act (consequence), so that a line with E names a cause;
//   - warnings and errors that one place in the source repeats faster than repeatBurst and repeatInterval admit. In
//     JSON, where warnings of klog cannot be told from information, that is information without -v too.
type logStream struct {
	out io.Writer

	mu sync.Mutex
	// places has an entry for each place in the source that has logged, by file and line.
	places map[string]*repeats
}

// What fails at every request (a webhook, a client without a valid token) takes as many lines at once as repeatBurst,
// and then one in each repeatInterval. It does not fill the disk.
const (
	repeatBurst    = 20
	repeatInterval = 10 * time.Second
)

// repeats are the lines of one place in the source.
type repeats struct {
	limiter *rate.Limiter
	// suppressed counts the lines that were left out since the last one that was written.
	suppressed int
}

var (
	// upstreamInformation matches what upstream's packages log without -v about their own work: all that is unstructured,
	// and the start and the end of controllers. All information of this program is structured.
	upstreamInformation = regexp.MustCompile(`^I[^\]]*\] ([^"]|"(Starting [^b]|Started|Running|Shutting down|Ending|` +
		`Stopping" component|[sS]topped monitors|Attempting to acquire|Successfully acquired|Caches|Waiting for caches|` +
		`Proceeding|Garbage collector|QuotaMonitor|Deleting old lease|Cleaning up lease|Sending events|allocated))`)
	// consequence matches errors after which a controller tries again, because its cache lacks a write of its own, or
	// somebody else has written or deleted the object meanwhile; those of a database that is not available; those of a
	// request whose time is over, or whose client has gone, unless it has panicked; and that the metrics of a
	// controller are there already when it is started again.
	consequence = regexp.MustCompile(`is not as new as written version|the object has been modified; please apply|` +
		`failed with [a-z.]+ \\*"[^"]+" not found|` + sqlstore.ErrUnavailable.Error() +
		`|the database did not confirm the write|http: Handler timeout|"Timeout or abort while handling"` +
		`|"Post-timeout activity".*result"?[=:]null|Original error: context canceled|` +
		`not an metav1\.Status: .*context canceled|` +
		`(Unexpected error when reading response body|lease lock)".*context (deadline exceeded|canceled)|` +
		`duplicate metrics collector registration attempted`)
	// ofStore matches lines of the store, which says why the database is not available.
	ofStore = regexp.MustCompile(`(\] |"msg":)"(backup|postgres|store): `)
	// verbose matches a line of information in JSON at a higher level than 0.
	verbose = regexp.MustCompile(`"v":[1-9]`)
	// place matches the place in the source that a line names first.
	place = regexp.MustCompile(`[\w.-]+\.go:\d+`)
)

func newLogStream(out io.Writer) *logStream {
	return &logStream{out: out, places: map[string]*repeats{}}
}

// Write implements io.Writer.
func (s *logStream) Write(line []byte) (int, error) {
	if len(line) == 0 {
		return 0, nil
	}
	isInformation := line[0] == 'I' || line[0] == '{' && verbose.Match(line)
	switch {
	case !klog.V(1).Enabled() && upstreamInformation.Match(line):
		return len(line), nil
	case isInformation || line[0] == 'F': // fatal: it is the last one
		return s.out.Write(line)
	case consequence.Match(line) && !ofStore.Match(line) && !klog.V(2).Enabled():
		return len(line), nil
	}
	suppressed, ok := s.admit(string(place.Find(line)))
	if !ok {
		return len(line), nil
	}
	if suppressed == 0 {
		return s.out.Write(line)
	}
	text := bytes.TrimSuffix(line, []byte("\n"))
	if line[0] == '{' {
		text = fmt.Appendf(nil, "%s,\"suppressed\":%d}\n", bytes.TrimSuffix(text, []byte("}")), suppressed)
	} else {
		text = fmt.Appendf(nil, "%s suppressed=%d\n", text, suppressed)
	}
	_, err := s.out.Write(text)
	return len(line), err
}

// admit reports whether a place may write a line now, and then how many were left out since its last one.
func (s *logStream) admit(place string) (suppressed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.places[place]
	if of == nil {
		of = &repeats{limiter: rate.NewLimiter(rate.Every(repeatInterval), repeatBurst)}
		s.places[place] = of
	}
	if !of.limiter.Allow() {
		of.suppressed++
		return 0, false
	}
	suppressed, of.suppressed = of.suppressed, 0
	return suppressed, true
}
