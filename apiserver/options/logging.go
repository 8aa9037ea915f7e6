package options

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"

	"github.com/go-logr/logr"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
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
//   - in text and without -v, the information of upstream's packages about their own work
//     (caches that sync, controllers that start). The log in JSON keeps it for those who
//     filter it by machine.
//   - warnings and errors that one place in the source repeats faster than repeats admits. klog
//     passes warnings to a sink for JSON as information, and so these are all kept.
type logSink struct {
	logr.LogSink
	depth   int // the sum of WithCallDepth
	isText  bool
	repeats *repeats
}

// Init implements logr.LogSink. The sink behind is initialized: Init would add to the call
// depth of a sink of zap.
func (s logSink) Init(logr.RuntimeInfo) {}

// Info implements logr.LogSink.
func (s logSink) Info(level int, message string, keysAndValues ...any) {
	if _, function := s.origin(); s.isText && !isOwn(function) && !wantsAll() {
		return
	}
	s.LogSink.Info(level, message, keysAndValues...)
}

// Error implements logr.LogSink.
func (s logSink) Error(err error, message string, keysAndValues ...any) {
	place, _ := s.origin()
	if suppressed, ok := s.repeats.admit(place); ok {
		s.LogSink.Error(err, message, appendSuppressed(keysAndValues, suppressed)...)
	}
}

// origin returns the place in the source and the function that a line comes from. Between this
// method and the caller of logr.Logger are the logSink, the logr.Logger, and what depth counts.
func (s logSink) origin() (place, function string) {
	pc, file, line, _ := runtime.Caller(3 + s.depth)
	if f := runtime.FuncForPC(pc); f != nil {
		function = f.Name()
	}
	return fmt.Sprint(file, ":", line), function
}

// isOwn reports whether a function is this program's own.
func isOwn(function string) bool {
	return strings.HasPrefix(function, "byre/") || strings.HasPrefix(function, "main.")
}

// wantsAll reports whether upstream's information is wanted too.
func wantsAll() bool { return klog.V(1).Enabled() }

// writeBuffer writes a line of text that klog has formatted: the letter of its severity, the
// time, the thread and the place, followed by "] ". Only upstream's code logs information this way.
func (s logSink) writeBuffer(text textlogger.KlogBufferWriter, line []byte) {
	switch {
	case len(line) == 0 || line[0] == 'F': // fatal: it is the last one
	case line[0] == 'I':
		if !wantsAll() {
			return
		}
	default:
		header, _, _ := bytes.Cut(line, []byte("] "))
		suppressed, ok := s.repeats.admit(string(header[bytes.LastIndexByte(header, ' ')+1:]))
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
	s.depth += depth
	if deeper, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		s.LogSink = deeper.WithCallDepth(depth)
	}
	return s
}
