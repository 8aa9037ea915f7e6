package server

import (
	"bytes"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"byre/sqlstore"
)

// filterLog puts a logSink before the log, except where the log is split into two streams.
func filterLog(config *logsapi.LoggingConfiguration) {
	sink, ok := klog.Background().GetSink().(logr.CallDepthLogSink)
	if ok && !config.Options.Text.SplitStream && !config.Options.JSON.SplitStream {
		setFilteredLog(sink)
	}
}

func setFilteredLog(sink logr.CallDepthLogSink) {
	options := []klog.LoggerOption{klog.ContextualLogger(true)}
	text, isText := sink.(textlogger.KlogBufferWriter)
	// The logSink is one call more between a line's place in the source and the sink
	// that prints it.
	filtered := logSink{LogSink: sink.WithCallDepth(1), isText: isText, repeats: newRepeats()}
	if isText {
		options = append(options, klog.WriteKlogBuffer(func(line []byte) { filtered.writeBuffer(text, line) }))
	}
	klog.SetLoggerWithOptions(logr.New(filtered), options...)
}

// logSink leaves lines out of the log:
//   - errors that are consequences (isConsequence), unless -v=2 is set, so that a line with E names a cause.
//   - in text and without -v, the information of upstream's packages about their own work
//     (caches that sync, controllers that start). The log in JSON keeps it for those who
//     filter it by machine.
//   - warnings and errors that one place in the source repeats faster than repeats admits.
type logSink struct {
	logr.LogSink
	isText  bool
	repeats *repeats
}

// Init implements logr.LogSink. The sink behind is initialized: Init would add to the call
// depth of a sink of zap.
func (s logSink) Init(logr.RuntimeInfo) {}

// Info implements logr.LogSink. klog passes warnings without a structure to a sink for JSON
// as information.
func (s logSink) Info(level int, message string, keysAndValues ...any) {
	from := findOrigin()
	if from.isWarning {
		suppressed, ok := s.repeats.admit(from.callSite)
		if !ok {
			return
		}
		keysAndValues = appendSuppressed(keysAndValues, suppressed)
	} else if s.isText && !from.isWanted() {
		return
	}
	s.LogSink.Info(level, message, keysAndValues...)
}

// Error implements logr.LogSink.
func (s logSink) Error(err error, message string, keysAndValues ...any) {
	from := findOrigin()
	if !from.isOfStore() && (isConsequence([]byte(message)) || err != nil && isConsequence([]byte(err.Error()))) {
		if klog.V(consequences).Enabled() {
			s.LogSink.Info(consequences, message, append(keysAndValues[:len(keysAndValues):len(keysAndValues)], "err", err)...)
		}
		return
	}
	if suppressed, ok := s.repeats.admit(from.callSite); ok {
		s.LogSink.Error(err, message, appendSuppressed(keysAndValues, suppressed)...)
	}
}

// writeBuffer writes a line of text that klog has formatted. It begins with the letter of its
// severity.
func (s logSink) writeBuffer(text textlogger.KlogBufferWriter, line []byte) {
	from := findOrigin()
	switch {
	case len(line) == 0 || line[0] == 'F': // fatal: it is the last one
	case line[0] == 'I':
		if !from.isWanted() {
			return
		}
	default:
		if !from.isOfStore() && isConsequence(line) && !klog.V(consequences).Enabled() {
			return
		}
		suppressed, ok := s.repeats.admit(from.callSite)
		if !ok {
			return
		}
		line = appendSuppressedText(line, suppressed)
	}
	text.WriteKlogBuffer(line)
}

// WithValues implements logr.LogSink.
func (s logSink) WithValues(keysAndValues ...any) logr.LogSink {
	s.LogSink = s.LogSink.WithValues(keysAndValues...)
	return s
}

// WithName implements logr.LogSink.
func (s logSink) WithName(name string) logr.LogSink {
	s.LogSink = s.LogSink.WithName(name)
	return s
}

// WithCallDepth implements logr.CallDepthLogSink.
func (s logSink) WithCallDepth(depth int) logr.LogSink {
	if deeper, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		s.LogSink = deeper.WithCallDepth(depth)
	}
	return s
}

// consequences is the verbosity from which errors are logged that are consequences.
const consequences = 2

// retried matches the errors with which a controller begins a step again: its cache lacks a write of its own, or
// somebody else has written or deleted the object meanwhile. Upstream formats them into texts before it logs them.
var retried = regexp.MustCompile(`is not as new as written version|the object has been modified; please apply|failed with [a-z.]+ "[^"]+" not found`)

// isConsequence reports whether the text of an error needs nobody to act: a controller will try again, or the
// database is not available, which the store logs once.
func isConsequence(text []byte) bool {
	return bytes.Contains(text, []byte(sqlstore.ErrUnavailable.Error())) || retried.Match(text)
}

// origin is where a line of the log comes from.
type origin struct {
	callSite
	function  string
	isWarning bool
}

// isWanted reports whether a line of information comes from this program's own code, or all
// of them are wanted.
func (o origin) isWanted() bool {
	return klog.V(1).Enabled() || strings.HasPrefix(o.function, "byre/") || strings.HasPrefix(o.function, "main.")
}

// isOfStore reports whether a line comes from the store, which says why the database is not available.
func (o origin) isOfStore() bool { return strings.HasPrefix(o.function, "byre/sqlstore") }

// findOrigin finds the first caller that is not a part of the way to the log.
func findOrigin() (o origin) {
	var callers [24]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers[:])])
	for {
		frame, more := frames.Next()
		if !isLogging(frame.Function) {
			o.callSite, o.function = callSite{frame.File, frame.Line}, frame.Function
			return o
		}
		o.isWarning = o.isWarning || strings.HasPrefix(frame.Function, "k8s.io/klog/v2.Warning")
		if !more {
			return o
		}
	}
}

// isLogging reports whether a function is a part of the way to the log.
func isLogging(function string) bool {
	for _, prefix := range []string{
		"k8s.io/klog/v2.", "github.com/go-logr/logr.", "log/slog.", "byre/apiserver/server.logSink.", "byre/apiserver/server.(*logSink).",
		"byre/apiserver/server.setFilteredLog.",
		// HandleError, by which most packages of Kubernetes log errors.
		"k8s.io/apimachinery/pkg/util/runtime.",
	} {
		if strings.HasPrefix(function, prefix) {
			return true
		}
	}
	return false
}

// The limit of warnings and errors that one place in the source writes: so many at once, and
// then one in each repeatInterval. What fails at every request (a webhook, a client without
// a valid token) then takes a few lines a minute, and does not fill the disk.
const (
	repeatBurst    = 20
	repeatInterval = 10 * time.Second
)

// callSite is a line of the source that logs.
type callSite struct {
	file string
	line int
}

// repeats limits each call site by itself, so that a message that is repeated
// displaces no other one. It has as many entries as the program has call sites.
type repeats struct {
	mu        sync.Mutex
	callSites map[callSite]*repeat
}

type repeat struct {
	limiter *rate.Limiter
	// suppressed counts the lines that were left out since the last one that was written.
	suppressed int
}

func newRepeats() *repeats { return &repeats{callSites: map[callSite]*repeat{}} }

// admit reports whether a call site may write a line now, and then how many were left out since
// its last one.
func (r *repeats) admit(p callSite) (suppressed int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.callSites[p]
	if at == nil {
		at = &repeat{limiter: rate.NewLimiter(rate.Every(repeatInterval), repeatBurst)}
		r.callSites[p] = at
	}
	if !at.limiter.Allow() {
		at.suppressed++
		return 0, false
	}
	suppressed, at.suppressed = at.suppressed, 0
	return suppressed, true
}

// suppressedKey is the key of the number of lines that were left out.
const suppressedKey = "suppressed"

func appendSuppressed(keysAndValues []any, suppressed int) []any {
	if suppressed == 0 {
		return keysAndValues
	}
	// A copy: the array behind may be the caller's.
	return append(keysAndValues[:len(keysAndValues):len(keysAndValues)], suppressedKey, suppressed)
}

func appendSuppressedText(line []byte, suppressed int) []byte {
	if suppressed == 0 {
		return line
	}
	return fmt.Appendf(nil, "%s %s=%d\n", bytes.TrimSuffix(line, []byte("\n")), suppressedKey, suppressed)
}
