package options

import (
	"runtime"
	"strings"

	"github.com/go-logr/logr"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// quietUpstream keeps what upstream's packages say of their own working (caches
// that sync, controllers that start) out of the text log unless -v is 1 or more.
// Warnings and errors stay, and so does all that this program says itself. The
// log in JSON is left to those who filter it by machine, and a log split into two
// streams as it is.
func quietUpstream(config *logsapi.LoggingConfiguration) {
	sink := klog.Background().GetSink()
	text, isText := sink.(textlogger.KlogBufferWriter)
	if !isText || config.Options.Text.SplitStream {
		return
	}
	klog.SetLoggerWithOptions(logr.New(quietSink{sink}), klog.ContextualLogger(true),
		klog.WriteKlogBuffer(func(line []byte) {
			// A line begins with the letter of its severity.
			if len(line) == 0 || line[0] != 'I' || isWanted() {
				text.WriteKlogBuffer(line)
			}
		}))
}

// quietSink drops the information that isWanted does not want.
type quietSink struct{ logr.LogSink }

// Init implements logr.LogSink. Info is one call more between a line's place in the
// source and the sink that prints it.
func (s quietSink) Init(info logr.RuntimeInfo) {
	info.CallDepth++
	s.LogSink.Init(info)
}

func (s quietSink) Info(level int, message string, keysAndValues ...any) {
	if isWanted() {
		s.LogSink.Info(level, message, keysAndValues...)
	}
}

func (s quietSink) WithValues(keysAndValues ...any) logr.LogSink {
	return quietSink{s.LogSink.WithValues(keysAndValues...)}
}

func (s quietSink) WithName(name string) logr.LogSink { return quietSink{s.LogSink.WithName(name)} }

// WithCallDepth implements logr.CallDepthLogSink.
func (s quietSink) WithCallDepth(depth int) logr.LogSink {
	if deeper, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return quietSink{deeper.WithCallDepth(depth)}
	}
	return s
}

// isWanted reports whether a line of information comes from this program's own
// code, or all of them are wanted.
func isWanted() bool {
	if klog.V(1).Enabled() {
		return true
	}
	var callers [24]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers[:])])
	for {
		frame, more := frames.Next()
		if !isLogging(frame.Function) {
			return strings.HasPrefix(frame.Function, "byre/") || strings.HasPrefix(frame.Function, "main.")
		}
		if !more {
			return false
		}
	}
}

// isLogging reports whether a function is a part of the way to the log.
func isLogging(function string) bool {
	for _, prefix := range []string{"k8s.io/klog/v2.", "github.com/go-logr/logr.", "log/slog.", "byre/apiserver/options.quiet", "byre/apiserver/options.(*quiet"} {
		if strings.HasPrefix(function, prefix) {
			return true
		}
	}
	return false
}
